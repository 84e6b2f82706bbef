//! What a run of certificates leaves in its directory, and how later commands take it up again.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::time::{Instant, SystemTime};

use anyhow::{Context, bail};
use retrievalguard::Seed;
use retrievalguard::certificate::CertificateName;
use retrievalguard::storage::atomic::WriteError;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::seal_line;
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard_encoder::dataset::{Boxes, DatasetOptions, Record, RecordSet, open};
use retrievalguard_encoder::engine::OnnxEmbedder;
use retrievalguard_encoder::picture::PictureLimits;
use retrievalguard_encoder::pipeline::run_files::{Inputs, RunPlaces, StoredRun};
use retrievalguard_encoder::pipeline::{CertifyReport, CertifyRequest, input_values};
use retrievalguard_encoder::run::{EncoderDescription, Method, RunDescription};
use retrievalguard_encoder::table::ResultTable;
use serde_json::json;

use crate::arguments::EngineArgs;
use crate::progress::tell;

/// What attacks have shown, beside the tables.
pub(super) const ATTACK_FILE: &str = "attack.json";

/// Times, threads and dates, one line per finished run.
pub(super) const LOG_FILE: &str = "run-log.jsonl";

/// Times, threads and dates go to a log, because the table holds only what the inputs decide.
pub(super) fn log_run(
    folder: &Path,
    request: &CertifyRequest<'_>,
    report: &CertifyReport,
    started: Instant,
) -> anyhow::Result<()> {
    let path = folder.join(LOG_FILE);
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let library = request.embedder.report().library.as_ref();
    let line = json!({
        "finished_unix_seconds": now,
        "seconds": started.elapsed().as_secs_f64(),
        "threads": request.options.threads,
        "batch": request.options.batch,
        "queries": report.table.rows().len(),
        "resumed": report.resumed,
        "skipped": report.skipped,
        "library": library.map(|path| path.display().to_string()),
        "run": report.description,
    });
    let failed = |error| WriteError::new(&path, error);
    let mut file = OpenOptions::new().create(true).append(true).open(&path).map_err(failed)?;
    file.write_all(seal_line(&line)?.as_bytes()).map_err(failed)?;
    Ok(())
}

/// The words of this very command.
pub(super) fn own_command() -> Vec<String> {
    std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect()
}

/// A finished run, opened again and verified.
pub(super) struct RunDirectory {
    pub(super) table: ResultTable,
    /// Digest of the table's file.
    pub(super) table_digest: Digest,
    /// What decided the table.
    pub(super) description: RunDescription,
    pub(super) inputs: Inputs,
}

impl RunDirectory {
    /// Reads the table, its description and where its inputs were.
    pub(super) fn open(folder: &Path) -> anyhow::Result<Self> {
        let StoredRun { table, table_file: table_digest, description, inputs } = StoredRun::open(folder)?;
        Ok(Self { table, table_digest, description, inputs })
    }

    /// Root of the noise; a run without noise shows pictures with that of zero.
    pub(super) fn seed(&self) -> Seed {
        self.description.smoothed().map_or(Seed::new(0), |smoothed| smoothed.seed)
    }

    /// The records of the table's queries, in the order of the table.
    pub(super) fn records(&self) -> anyhow::Result<RecordSet> {
        let rows = self.table.rows().iter().zip(self.remaining_records()?);
        rows.map(|(row, record)| {
            record.with_context(|| {
                let queries = self.inputs.places.queries.display();
                format!("query `{}` of the run is not in `{queries}` any more", row.identity)
            })
        })
        .collect()
    }

    /// The same, with none in the place of a query that is gone.
    pub(super) fn remaining_records(&self) -> anyhow::Result<Vec<Option<Record>>> {
        let RunPlaces { queries, format, boxes, .. } = &self.inputs.places;
        let boxes = Boxes::named(boxes)
            .with_context(|| format!("the rule for boxes is `{boxes}`, which is unknown"))?;
        let data = open(queries, format.parse()?, DatasetOptions { boxes })?;
        let mut known: HashMap<String, Record> =
            data.records.into_iter().map(|record| (record.identity.clone(), record)).collect();
        Ok(self.table.rows().iter().map(|row| known.remove(&row.identity)).collect())
    }

    /// Whether the queries' pictures are those that were certified.
    pub(super) fn check_pictures(&self, records: &RecordSet) -> anyhow::Result<()> {
        let (found, wanted) = (records.digest(), self.inputs.pictures);
        if found != wanted {
            bail!(
                "pictures in `{}` have changed since the run: their digest is {found}, wanted {wanted}",
                self.inputs.places.queries.display()
            );
        }
        Ok(())
    }

    /// Says so if another engine runs than that of the run.
    pub(super) fn tell_engine(&self, embedder: &OnnxEmbedder) {
        let (found, wanted) = (embedder.report().to_string(), &self.description.encoder.engine);
        if found != *wanted {
            tell(format_args!("note: the run used {wanted}, this is {found}, so the last digits may differ"));
        }
    }

    /// The gallery that was searched, and no other.
    pub(super) fn gallery(&self) -> anyhow::Result<StoredGallery> {
        let path = &self.inputs.places.gallery;
        let stored = StoredGallery::open(path)?;
        if stored.digest()? != self.description.gallery.digest {
            bail!("gallery `{}` has changed since the run, wanted it unchanged", path.display());
        }
        Ok(stored)
    }

    /// The encoder that was run, and no other.
    pub(super) fn encoder(&self, engine: &EngineArgs) -> anyhow::Result<OnnxEmbedder> {
        let RunPlaces { model, contract, .. } = &self.inputs.places;
        let embedder = match &self.description.method {
            Method::Smoothed(_) => engine.open(model, contract.as_deref())?,
            Method::Lipschitz(bounded) => {
                let embedder = engine.open_double(model, contract.as_deref(), "the run has no noise")?;
                // What the run says of the bound is not believed: it is computed from the weights once more.
                if *embedder.lipschitz()? != bounded.lipschitz {
                    bail!(
                        "the Lipschitz bound of `{}` is another than the run's: {}, wanted {}",
                        model.display(),
                        embedder.lipschitz()?.constant,
                        bounded.lipschitz.constant
                    );
                }
                embedder
            }
        };
        let embedder = embedder.with_components(self.description.encoder.components);
        let (found, wanted) = (EncoderDescription::new(&embedder), &self.description.encoder);
        for (what, found, wanted) in [
            ("the encoder", found.model, wanted.model),
            ("the encoder's model config", found.contract, wanted.contract),
        ] {
            if found != wanted {
                bail!("{what} of `{}` has changed since the run: {found}, wanted {wanted}", model.display());
            }
        }
        Ok(embedder)
    }

    /// Rows of the gallery that a query did not see.
    pub(super) fn excluded(&self, identity: &str) -> &[usize] {
        self.inputs.excluded.get(identity).map_or(&[], Vec::as_slice)
    }
}

/// The certificate that was asked for, if the run has it.
pub(super) fn certificate_of(
    run: &RunDirectory,
    wanted: Option<CertificateName>,
) -> anyhow::Result<CertificateName> {
    let names = run.table.certificates();
    let usual =
        || names.iter().copied().find(|&name| name == CertificateName::HalfSpace).or(names.first().copied());
    let name = wanted.or_else(usual).context("the run has no certificates")?;
    if !names.contains(&name) {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        bail!("the run has no certificate {name}, wanted one of {}", names.join(", "));
    }
    Ok(name)
}

/// A picture as the encoder takes it.
pub(super) fn pixels_of(record: &Record, embedder: &OnnxEmbedder) -> anyhow::Result<Vec<f32>> {
    let config = embedder.model_config();
    let picture = record.read(&PictureLimits::default())?;
    let prepared = config.preparation().apply(&record.identity, &picture)?;
    Ok(input_values(config, &record.identity, prepared)?)
}
