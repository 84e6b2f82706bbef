//! Walks over the fields of a message without knowing its schema.
//!
//! Only model files are read this way, so the errors are theirs.

use std::path::Path;

use crate::graph::ModelFileError;

/// A protocol-buffer message: some bytes of the file, and where they begin.
#[derive(Clone, Copy)]
pub(crate) struct Message<'a> {
    pub(crate) path: &'a Path,
    pub(crate) bytes: &'a [u8],
    pub(crate) start: usize,
}

/// What a field holds.
#[derive(Clone, Copy)]
pub(crate) enum Payload<'a> {
    Number(u64),
    Bytes(Message<'a>),
    Fixed32([u8; 4]),
    Fixed64([u8; 8]),
}

impl<'a> Message<'a> {
    pub(crate) fn fields(&self) -> Fields<'a> {
        Fields { message: *self, position: 0 }
    }

    pub(crate) fn text(&self) -> Result<String, ModelFileError> {
        let text =
            std::str::from_utf8(self.bytes).map_err(|_| self.fault(0, "found a name that is not UTF-8"))?;
        Ok(text.to_owned())
    }

    /// The numbers of a packed field, one after the other.
    pub(crate) fn packed(&self) -> impl Iterator<Item = Result<u64, ModelFileError>> + use<'a> {
        let mut fields = self.fields();
        std::iter::from_fn(move || {
            if fields.position >= fields.message.bytes.len() {
                return None;
            }
            let number = fields.number();
            if number.is_err() {
                fields.position = fields.message.bytes.len();
            }
            Some(number)
        })
    }

    pub(crate) fn fault(&self, position: usize, reason: &'static str) -> ModelFileError {
        ModelFileError::NotOnnx { path: self.path.to_owned(), at: self.start + position, reason }
    }
}

/// Walks over the fields of a message; ends after the first error.
pub(crate) struct Fields<'a> {
    message: Message<'a>,
    position: usize,
}

impl<'a> Fields<'a> {
    fn number(&mut self) -> Result<u64, ModelFileError> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let Some(&byte) = self.message.bytes.get(self.position) else { return Err(self.truncated(1)) };
            self.position += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(number);
            }
        }
        Err(self.message.fault(self.position, "found a number of more than ten bytes"))
    }

    fn take(&mut self, length: u64) -> Result<&'a [u8], ModelFileError> {
        let rest = &self.message.bytes[self.position..];
        let taken = usize::try_from(length).ok().and_then(|length| rest.get(..length));
        let taken = taken.ok_or_else(|| self.truncated(length))?;
        self.position += taken.len();
        Ok(taken)
    }

    fn array<const LENGTH: usize>(&mut self) -> Result<[u8; LENGTH], ModelFileError> {
        let mut array = [0; LENGTH];
        array.copy_from_slice(self.take(LENGTH as u64)?);
        Ok(array)
    }

    fn truncated(&self, wanted: u64) -> ModelFileError {
        let Message { path, bytes, start } = self.message;
        let (at, found) = (start + self.position, bytes.len() - self.position);
        ModelFileError::Truncated { path: path.to_owned(), at, wanted, found }
    }

    fn field(&mut self) -> Result<(u64, Payload<'a>), ModelFileError> {
        let key = self.number()?;
        let payload = match key & 7 {
            0 => Payload::Number(self.number()?),
            1 => Payload::Fixed64(self.array()?),
            2 => {
                let length = self.number()?;
                let start = self.message.start + self.position;
                Payload::Bytes(Message { path: self.message.path, bytes: self.take(length)?, start })
            }
            5 => Payload::Fixed32(self.array()?),
            _ => return Err(self.message.fault(self.position, "found a field of unknown kind")),
        };
        match key >> 3 {
            0 => Err(self.message.fault(self.position, "found a field without a number")),
            number => Ok((number, payload)),
        }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u64, Payload<'a>), ModelFileError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.position >= self.message.bytes.len() {
            return None;
        }
        let field = self.field();
        if field.is_err() {
            self.position = self.message.bytes.len();
        }
        Some(field)
    }
}
