//! `retrievalguard report`: a run in, one page and its figures out.

use std::collections::HashMap;
use std::fs;
use std::io::Write;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use retrievalguard::certificate::Radius;
use retrievalguard::gallery::Metric;
use retrievalguard::storage::atomic::{self, WriteError};
use retrievalguard::storage::manifest::SeedRecord;
use retrievalguard::storage::sealed::{SealError, unseal};
use retrievalguard::storage::stored::StoredGallery;
use retrievalguard::{ForwardError, SampleCount};
use retrievalguard_encoder::dataset::{DatasetOptions, Format, Record, data_set_digest, open};
use retrievalguard_encoder::graph::bound::Above;
use retrievalguard_encoder::model_config::ModelConfig;
use retrievalguard_encoder::picture::{PictureLimits, RgbPicture};
use retrievalguard_encoder::pipeline::input_values;
use retrievalguard_encoder::pipeline::run_files::TABLE_FILE;
use retrievalguard_encoder::run::Method;
use retrievalguard_encoder::table::ResultRow;
use retrievalguard_encoder::views::view_set;
use retrievalguard_report::attack::{Attack, AttackFileError};
use retrievalguard_report::picture::{Part, SIDE, Thumbnail};
use retrievalguard_report::report::{
    Basis, CommandLine, Facts, GalleryFacts, LipschitzFacts, QueryRadius, Report, RowPictures, SampleFacts,
    headline,
};
use retrievalguard_report::visible::VisibleRadius;

use super::run_directory::{ATTACK_FILE, LOG_FILE, RunDirectory};
use super::{quoted, write_figure};
use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard report retrievalguard-demo/certificates\n\n\
        The page needs no network; the figures are in RUN/figures as SVG and PNG."
)]
pub(crate) struct ReportArgs {
    /// The run, as written by `retrievalguard certify` or `retrievalguard demo`
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The page to write; report.html in the run's directory by default
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// How many queries to list with their pictures
    #[arg(long, default_value = "500", value_name = "N")]
    most: NonZeroUsize,
}

pub(super) fn run(arguments: &ReportArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let folder = &arguments.run;
    let run = RunDirectory::open(folder)?;
    let mut notes = Vec::new();
    let attack = read_attack(folder, &run, &mut notes)?;
    let gallery = available(run.gallery(), "Items of the gallery are shown without pictures", &mut notes);
    let config = available(model_config(&run), "Changed pictures are not shown", &mut notes);
    let records = available(run.remaining_records(), "Queries are shown without pictures", &mut notes);
    let run_pictures = RunPictures {
        run: &run,
        gallery: gallery.as_ref(),
        config: config.as_ref(),
        records: records.as_deref(),
    };
    let (pictures, missing) = run_pictures.pictures(arguments.most.get());
    if missing > 0 {
        notes.push(format!("{missing} pictures could not be read any more; their places are marked."));
    }
    let report = Report {
        name: folder.display().to_string(),
        table: &run.table,
        facts: facts(&run, finished(folder), gallery.as_ref(), config.as_ref()),
        pictures,
        visible: run_pictures.visible(),
        commands: commands(arguments, &run, gallery.as_ref())?,
        attack: attack.as_ref(),
        notes,
    };
    let html = report.html()?;
    let path = arguments.out.clone().unwrap_or_else(|| folder.join("report.html"));
    let figures = folder.join("figures");
    fs::create_dir_all(&figures).map_err(|error| WriteError::new(&figures, error))?;
    for figure in report.figures()? {
        write_figure(&figure.figure, &figures.join(figure.name))?;
    }
    atomic::write(&path, html.as_bytes())?;
    for note in &report.notes {
        tell(format_args!("note: {note}"));
    }
    writeln!(out, "{}", path.display())?;
    Ok(())
}

/// What is still there; otherwise the page says what is missing and why.
fn available<T>(found: anyhow::Result<T>, consequence: &str, notes: &mut Vec<String>) -> Option<T> {
    found.map_err(|error| notes.push(format!("{consequence}: {error:#}."))).ok()
}

/// The attacks on this very table; those on another one are left out, and a note says so.
fn read_attack(folder: &Path, run: &RunDirectory, notes: &mut Vec<String>) -> anyhow::Result<Option<Attack>> {
    let path = folder.join(ATTACK_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let text = fs::read(&path).with_context(|| format!("`{}` cannot be read", path.display()))?;
    let attack = match Attack::parse(&text) {
        Err(AttackFileError::Seal(SealError::Unsealed)) => {
            notes.push(format!(
                "Attacks are not shown: `{}` holds no digest of itself, as none did before; attack the run again.",
                path.display()
            ));
            return Ok(None);
        }
        other => other.with_context(|| format!("`{}` cannot be shown", path.display()))?,
    };
    let (table, wanted) = (folder.join(TABLE_FILE), run.table_digest);
    if attack.table != Some(wanted) {
        let found = attack.table.map_or("no table".to_owned(), |found| format!("the table {found:.16}…"));
        notes.push(format!(
            "Attacks are not shown: `{}` names {found}, wanted {wanted:.16}…, which is `{}`; attack the run again.",
            path.display(),
            table.display()
        ));
        return Ok(None);
    }
    let names = run.table.certificates();
    if !names.iter().any(|name| name.as_str() == attack.certificate) {
        let names: Vec<&str> = names.iter().map(|name| name.as_str()).collect();
        bail!(
            "`{}` attacks the certificate `{}`, wanted one of the table's: {}",
            path.display(),
            attack.certificate,
            names.join(", ")
        );
    }
    Ok(Some(attack))
}

/// The model config that the queries were prepared by, and no other.
fn model_config(run: &RunDirectory) -> anyhow::Result<ModelConfig> {
    let model = &run.inputs.places.model;
    let config = match &run.inputs.places.contract {
        Some(path) => ModelConfig::read(path)?,
        None => ModelConfig::for_model(model)?,
    };
    let (found, wanted) = (config.hash(), run.description.encoder.contract.to_string());
    if found != wanted {
        bail!(
            "the model config of `{}` has changed since the run: {found}, wanted {wanted}",
            model.display()
        );
    }
    Ok(config)
}

/// Where the pictures of a run are.
struct RunPictures<'a> {
    run: &'a RunDirectory,
    gallery: Option<&'a StoredGallery>,
    config: Option<&'a ModelConfig>,
    records: Option<&'a [Option<Record>]>,
}

impl RunPictures<'_> {
    /// Pictures of the first `most` rows, and how many could not be read.
    fn pictures(&self, most: usize) -> (Vec<RowPictures>, usize) {
        let mut missing = 0;
        let mut known: HashMap<&str, Option<Thumbnail>> = HashMap::new();
        let mut pictures = Vec::new();
        for (place, row) in self.run.table.rows().iter().take(most).enumerate() {
            let mut shown = RowPictures::default();
            if let Some(records) = self.records {
                if let Some(record) = &records[place] {
                    (shown.query, shown.perturbed) = self.query(record, row);
                }
                missing += usize::from(shown.query.is_none());
            }
            let wrong = row.nearest_wrong.as_ref().map(|item| item.identity.as_str());
            let items =
                [(Some(row.retrieved.as_str()), &mut shown.retrieved), (wrong, &mut shown.nearest_wrong)];
            for (identity, place) in items {
                let (Some(identity), Some(gallery)) = (identity, self.gallery) else { continue };
                // The same item answers many queries.
                let thumbnail = known.entry(identity).or_insert_with(|| {
                    let thumbnail = self.item(gallery, identity);
                    missing += usize::from(thumbnail.is_none());
                    thumbnail
                });
                place.clone_from(thumbnail);
            }
            pictures.push(shown);
        }
        (pictures, missing)
    }

    /// The query, and what it looks like after a change of the certified size.
    fn query(&self, record: &Record, row: &ResultRow) -> (Option<Thumbnail>, Option<Thumbnail>) {
        let Ok(picture) = record.read(&PictureLimits::default()) else { return (None, None) };
        let radius = headline(&self.run.table).and_then(|name| row.certificates[&name].verdict.radius());
        let perturbed = match (self.config, radius) {
            (Some(config), Some(Radius::Finite(radius))) => {
                self.perturbed(config, record, &picture, radius).ok()
            }
            _ => None,
        };
        (Thumbnail::new(&record.identity, &picture, SIDE).ok(), perturbed)
    }

    /// The encoder's input.
    fn values(config: &ModelConfig, record: &Record, picture: &RgbPicture) -> anyhow::Result<Vec<f32>> {
        let prepared = config.preparation().apply(&record.identity, picture)?;
        Ok(input_values(config, &record.identity, prepared)?)
    }

    fn perturbed(
        &self,
        config: &ModelConfig,
        record: &Record,
        picture: &RgbPicture,
        radius: f64,
    ) -> anyhow::Result<Thumbnail> {
        let values = Self::values(config, record, picture)?;
        Ok(Thumbnail::perturbed(&record.identity, &values, config, radius, self.run.seed())?)
    }

    /// What radii look like: on the query in the middle of the certified ones, and on the one with the largest radius.
    fn visible(&self) -> Vec<QueryRadius> {
        let Some(name) = headline(&self.run.table) else { return Vec::new() };
        let mut certified: Vec<(f64, usize)> = Vec::new();
        for (place, row) in self.run.table.rows().iter().enumerate() {
            if let Some(Radius::Finite(radius)) = row.certificates[&name].verdict.radius() {
                certified.push((radius, place));
            }
        }
        certified.sort_by(|one, other| one.0.total_cmp(&other.0).then(other.1.cmp(&one.1)));
        let middle = certified.get(certified.len() / 2).map(|&found| ("The typical query", found));
        let strongest = certified.last().map(|&found| ("The strongest query", found));
        let ranked = middle.into_iter().chain(strongest);
        ranked.filter_map(|(rank, (radius, place))| self.seen(rank, radius, place).ok().flatten()).collect()
    }

    /// The three pictures of one query; none if its picture or the model config is gone.
    fn seen(&self, rank: &'static str, radius: f64, place: usize) -> anyhow::Result<Option<QueryRadius>> {
        let (Some(config), Some(records)) = (self.config, self.records) else { return Ok(None) };
        let Some(record) = &records[place] else { return Ok(None) };
        let (identity, seed) = (record.identity.as_str(), self.run.seed());
        let values = Self::values(config, record, &record.read(&PictureLimits::default())?)?;
        let seen = VisibleRadius::new(identity, &values, config, radius, seed, Part::Centre)?;
        Ok(Some(QueryRadius { rank, identity: identity.to_owned(), seen }))
    }

    fn item(&self, gallery: &StoredGallery, identity: &str) -> Option<Thumbnail> {
        let row = *gallery.gallery().rows_of(identity).ok()?.first()?;
        let path = gallery.picture_path(row).ok()??;
        // A relative path holds where the gallery was made, which is nearly always where the run was.
        let places = [self.run.inputs.places.directory.join(&path), path];
        let path = places.iter().find(|path| path.is_file())?;
        let picture = RgbPicture::from_path(path, &PictureLimits::default()).ok()?;
        Thumbnail::new(identity, &picture, SIDE).ok()
    }
}

/// When the run was finished last, if its log says so.
fn finished(folder: &Path) -> Option<u64> {
    let text = fs::read_to_string(folder.join(LOG_FILE)).ok()?;
    let line = unseal(text.lines().last()?.as_bytes()).ok()?;
    line["finished_unix_seconds"].as_u64()
}

/// What the certificates rest on.
fn basis(method: &Method, config: Option<&ModelConfig>) -> Basis {
    match method {
        Method::Smoothed(smoothed) => {
            let procedure = &smoothed.procedure;
            Basis::Samples(SampleFacts {
                sigma: procedure.sigma,
                alpha: procedure.alpha,
                pilot: procedure.pilot,
                samples: procedure.samples,
                target_radius: procedure.target_radius,
                seed: String::from(smoothed.seed),
            })
        }
        Method::Lipschitz(bounded) => {
            let bound = &bounded.lipschitz;
            let values = config.map(ModelConfig::picture_shape).map(|shape| shape.iter().product::<usize>());
            // A white picture, and a change as large as it.
            let error = values.and_then(|values| bound.double_error.at(2.0 * (values as f64).sqrt()).ok());
            Basis::Lipschitz(LipschitzFacts {
                constant: format!("{:.9}", Above(bound.constant)),
                forward_error: error.map(ForwardError::get),
                layers: bound.layers.len(),
            })
        }
    }
}

fn facts(
    run: &RunDirectory,
    finished: Option<u64>,
    gallery: Option<&StoredGallery>,
    config: Option<&ModelConfig>,
) -> Facts {
    let description = &run.description;
    let digests = [
        ("model", description.encoder.model),
        ("contract", description.encoder.contract),
        ("gallery", description.gallery.digest),
        ("queries", description.queries),
        ("rows that queries did not see", description.excluded_rows),
    ];
    Facts {
        basis: basis(&description.method, config),
        left_out: description.leave_one_out as u64,
        engine: description.encoder.engine.clone(),
        tool: description.tool.clone(),
        finished,
        digests: digests.map(|(name, digest)| (name.to_owned(), digest.to_string())).to_vec(),
        gallery: gallery.map(|stored| GalleryFacts {
            items: stored.gallery().item_count(),
            dimension: stored.gallery().dimension(),
            norm_bound: stored.provenance().norm_bound,
            views: stored.provenance().views.as_ref().map(|set| set.views().len()),
            samples: stored.provenance().samples.and_then(|count| SampleCount::new(u64::from(count)).ok()),
        }),
        input: config.map(ModelConfig::picture_shape),
    }
}

/// What to type to have all of it again.
fn commands(
    arguments: &ReportArgs,
    run: &RunDirectory,
    gallery: Option<&StoredGallery>,
) -> anyhow::Result<Vec<CommandLine>> {
    let inputs = &run.inputs.places;
    let there = |command: String| Some(format!("cd {} && {command}", quoted(&inputs.directory)));
    let mut commands = Vec::new();
    let given: Vec<String> = inputs.command.iter().map(|word| quoted(Path::new(word))).collect();
    let demo = inputs.command.get(1).is_some_and(|word| word == "demo");
    // A demo makes its own gallery.
    if !demo {
        let line = gallery.and_then(|gallery| index_command(run, gallery)).and_then(there);
        let purpose = match line {
            Some(_) => "The gallery:",
            None => "The command that made the gallery is not known; the gallery's digests stand above.",
        };
        commands.push(CommandLine { purpose: purpose.to_owned(), line });
    }
    commands.push(CommandLine {
        purpose: if demo {
            "Everything, as it was given:"
        } else {
            "The certificates, as the command was given:"
        }
        .to_owned(),
        line: there(given.join(" ")),
    });
    let folder = std::path::absolute(&arguments.run)
        .with_context(|| format!("`{}` has no absolute path", arguments.run.display()))?;
    let folder = match folder.strip_prefix(&inputs.directory) {
        Ok(below) if below.as_os_str().is_empty() => Path::new("."),
        Ok(below) => below,
        Err(_) => &folder,
    };
    commands.push(CommandLine {
        purpose: "This page and its figures:".to_owned(),
        line: there(format!("retrievalguard report {}", quoted(folder))),
    });
    Ok(commands)
}

/// The command that makes the gallery, if the gallery knows enough of its making and its pictures are what they were.
fn index_command(run: &RunDirectory, gallery: &StoredGallery) -> Option<String> {
    // Shards do not keep the paths of all pictures in memory.
    let gallery = gallery.in_memory().ok()?;
    let provenance = &gallery.manifest.provenance;
    let noise = match (provenance.sigma, provenance.samples?, provenance.seed) {
        (Some(sigma), samples, Some(SeedRecord::Fixed(seed))) => {
            format!(" --sigma {sigma} --samples {samples} --seed {}", String::from(seed))
        }
        // A run without noise searches what was indexed without it.
        (None, 0, None) if run.description.sigma().is_none() => String::new(),
        _ => return None,
    };
    // A picture of a folder of folders lies at its identity below the folder.
    let roots = gallery.paths.iter().enumerate().map(|(row, path)| {
        let root = path.as_ref()?.strip_suffix(gallery.gallery.identity(row))?;
        Some(root.trim_end_matches('/'))
    });
    let mut roots = roots.collect::<Option<Vec<&str>>>()?;
    roots.dedup();
    let [root] = roots.as_slice() else { return None };
    let pictures = if root.is_empty() { "." } else { root };
    // The command reads the folder as it is, so it must find the pictures that were indexed, all of them and no others.
    let found =
        open(&run.inputs.places.directory.join(pictures), Format::Auto, DatasetOptions::default()).ok()?;
    let same = found.records.len() == gallery.gallery.item_count()
        && Some(data_set_digest(&found.records)) == provenance.data_set;
    if !same {
        return None;
    }
    let views = match &provenance.views {
        // A set of one's own came from a file that is not known.
        Some(set) => {
            let known = view_set(set.name()).ok().filter(|known| known.digest() == set.digest())?;
            format!(" --views {}", known.name())
        }
        None => String::new(),
    };
    let config = run.inputs.places.contract.as_ref().map(|path| format!(" --contract {}", quoted(path)));
    Some(format!(
        "retrievalguard index {} --model {}{}{noise}{views}{}{} --gallery {}",
        quoted(Path::new(pictures)),
        quoted(&run.inputs.places.model),
        config.unwrap_or_default(),
        if gallery.manifest.metric == Metric::Cosine { " --cosine" } else { "" },
        if provenance.components.is_any() { "" } else { " --non-negative" },
        quoted(&run.inputs.places.gallery),
    ))
}
