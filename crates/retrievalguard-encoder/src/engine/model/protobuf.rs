//! Walks over the fields of protocol-buffer messages without knowing their schema.

use std::path::Path;

use super::ModelFileError;

/// A protocol-buffer message: some bytes of the file, and where they begin.
pub(super) struct Message<'a> {
    pub(super) path: &'a Path,
    pub(super) bytes: &'a [u8],
    pub(super) start: usize,
}

/// What a field holds.
pub(super) enum Payload<'a> {
    Number(u64),
    Bytes(Message<'a>),
    /// Four or eight bytes that nobody here reads.
    Fixed,
}

impl<'a> Message<'a> {
    pub(super) fn fields(&self) -> Fields<'_, 'a> {
        Fields { message: self, position: 0 }
    }

    pub(super) fn text(&self) -> Result<String, ModelFileError> {
        let text =
            std::str::from_utf8(self.bytes).map_err(|_| self.fault(0, "found a name that is not UTF-8"))?;
        Ok(text.to_owned())
    }

    pub(super) fn fault(&self, position: usize, reason: &'static str) -> ModelFileError {
        ModelFileError::NotOnnx { path: self.path.to_owned(), at: self.start + position, reason }
    }
}

/// Walks over the fields of a message; ends after the first error.
pub(super) struct Fields<'m, 'a> {
    message: &'m Message<'a>,
    position: usize,
}

impl<'a> Fields<'_, 'a> {
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

    fn truncated(&self, wanted: u64) -> ModelFileError {
        let Message { path, bytes, start } = *self.message;
        let (at, found) = (start + self.position, bytes.len() - self.position);
        ModelFileError::Truncated { path: path.to_owned(), at, wanted, found }
    }

    fn field(&mut self) -> Result<(u64, Payload<'a>), ModelFileError> {
        let key = self.number()?;
        let payload = match key & 7 {
            0 => Payload::Number(self.number()?),
            1 => self.take(8).map(|_| Payload::Fixed)?,
            2 => {
                let length = self.number()?;
                let start = self.message.start + self.position;
                Payload::Bytes(Message { path: self.message.path, bytes: self.take(length)?, start })
            }
            5 => self.take(4).map(|_| Payload::Fixed)?,
            _ => return Err(self.message.fault(self.position, "found a field of unknown kind")),
        };
        match key >> 3 {
            0 => Err(self.message.fault(self.position, "found a field without a number")),
            number => Ok((number, payload)),
        }
    }
}

impl<'a> Iterator for Fields<'_, 'a> {
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
