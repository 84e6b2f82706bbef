//! The pictures of a run as its encoder takes them.

use retrievalguard::Picture;

use super::{PictureOutcome, PipelineError};
use crate::dataset::{BrokenPictures, Record, RecordSet};
use crate::model_config::ModelConfig;
use crate::picture::{PictureError, PictureLimits, RgbPicture};
use crate::resize::PreparedPicture;

/// Decodes and prepares pictures by their positions, from any number of threads.
#[derive(Clone, Copy, Debug)]
pub struct EncoderInputs<'a> {
    /// The pictures.
    pub records: &'a RecordSet,
    /// What the encoder wants of a picture.
    pub config: &'a ModelConfig,
    /// What happens to a picture that cannot be read.
    pub broken: BrokenPictures,
}

impl EncoderInputs<'_> {
    /// Does `work` with the picture at a position, unless it is broken and may be left out.
    ///
    /// # Panics
    ///
    /// If there is no such position.
    pub fn with<T, E: From<PipelineError>>(
        &self,
        position: usize,
        work: impl FnOnce(&Record, &Picture<'_>) -> Result<T, E>,
    ) -> Result<PictureOutcome<T>, E> {
        self.with_decoded(position, |record, _, picture| work(record, picture))
    }

    /// The same, with the decoded picture beside the prepared one.
    ///
    /// # Panics
    ///
    /// If there is no such position.
    pub fn with_decoded<T, E: From<PipelineError>>(
        &self,
        position: usize,
        work: impl FnOnce(&Record, &RgbPicture, &Picture<'_>) -> Result<T, E>,
    ) -> Result<PictureOutcome<T>, E> {
        let record = &self.records[position];
        let (decoded, prepared) = match (self.prepare(position), self.broken) {
            (Ok(both), _) => both,
            // It is not broken: it is another one than the run is about.
            (Err(error @ PictureError::Changed { .. }), _) => return Err(PipelineError::from(error).into()),
            (Err(error), BrokenPictures::Skip) => return Ok(PictureOutcome::Skipped(error.to_string())),
            (Err(error), BrokenPictures::Fatal) => return Err(PipelineError::from(error).into()),
        };
        let pixels = input_values(self.config, &record.identity, prepared)?;
        let picture = Picture { identity: &record.identity, pixels: &pixels };
        work(record, &decoded, &picture).map(PictureOutcome::Done)
    }

    fn prepare(&self, position: usize) -> Result<(RgbPicture, PreparedPicture), PictureError> {
        let picture = self.records.read(position, &PictureLimits::default())?;
        let prepared = self.config.preparation().apply(&self.records[position].identity, &picture)?;
        Ok((picture, prepared))
    }
}

/// A prepared picture as the encoder's input: three planes, or one of `0.299 R + 0.587 G + 0.114 B`.
pub fn input_values(
    config: &ModelConfig,
    identity: &str,
    picture: PreparedPicture,
) -> Result<Vec<f32>, PipelineError> {
    let [channels, height, width] = config.picture_shape();
    if (picture.size.height, picture.size.width) != (height, width) {
        return Err(PipelineError::Size {
            picture: identity.to_owned(),
            found_height: picture.size.height,
            found_width: picture.size.width,
            height,
            width,
        });
    }
    if channels == 3 {
        return Ok(picture.values);
    }
    let plane = height * width;
    let (red, rest) = picture.values.split_at(plane);
    let (green, blue) = rest.split_at(plane);
    Ok(red
        .iter()
        .zip(green)
        .zip(blue)
        // Equal channels stay what they are, whatever the weights round to.
        .map(
            |((&red, &green), &blue)| {
                if red == green && green == blue { red } else { 0.299 * red + 0.587 * green + 0.114 * blue }
            },
        )
        .collect())
}

#[cfg(test)]
mod tests {
    use tempfile::tempdir;

    use super::*;
    use crate::dataset::{DatasetOptions, Format, open};

    #[test]
    fn a_broken_picture_is_fatal_or_skipped_and_named() {
        let pictures = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/pictures");
        let whole = std::fs::read(pictures.join("edges-97x61-420.jpg")).unwrap();
        let root = tempdir().unwrap();
        for (name, bytes) in [
            ("one/a.jpg", whole.as_slice()),
            ("one/b.jpg", &whole[..whole.len() / 2]),
            ("two/c.png", &std::fs::read(pictures.join("png-grey-alpha.png")).unwrap()),
            ("two/d.png", b"no picture"),
        ] {
            let path = root.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, bytes).unwrap();
        }
        let records: RecordSet =
            open(root.path(), Format::Auto, DatasetOptions::default()).unwrap().records.into();
        let model = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/models/convolutional.onnx");
        let config = ModelConfig::for_model(&model).unwrap();
        let length: usize = config.picture_shape().iter().product();
        let inputs = EncoderInputs { records: &records, config: &config, broken: BrokenPictures::Skip };
        let load = |inputs: &EncoderInputs<'_>, position| {
            inputs.with(position, |_, picture| Ok::<_, PipelineError>(picture.pixels.len()))
        };
        let outcomes: Vec<_> = (0..4).map(|position| load(&inputs, position).unwrap()).collect();
        assert_eq!([&outcomes[0], &outcomes[2]], [&PictureOutcome::Done(length); 2]);
        for (position, name) in [(1, "b.jpg"), (3, "d.png")] {
            let PictureOutcome::Skipped(reason) = &outcomes[position] else { panic!("{outcomes:?}") };
            assert!(reason.contains(name), "{reason}");
        }
        let strict = EncoderInputs { broken: BrokenPictures::Fatal, ..inputs };
        assert!(load(&strict, 0).is_ok());
        let error = load(&strict, 1).unwrap_err();
        assert!(
            matches!(&error, PipelineError::Picture(PictureError::Broken { picture, .. }) if picture.ends_with("b.jpg")),
            "{error:?}"
        );
        assert!(matches!(load(&strict, 3), Err(PipelineError::Picture(PictureError::UnknownFormat { .. }))));
        // A picture that was changed is not left out: the run is about another one.
        records.digest();
        std::fs::write(root.path().join("one/b.jpg"), whole).unwrap();
        let changed = load(&inputs, 1);
        assert!(matches!(changed, Err(PipelineError::Picture(PictureError::Changed { .. }))), "{changed:?}");
    }
}
