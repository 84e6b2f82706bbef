//! What a run of attacks leaves behind: `attack.json`, a table, and a failure where there is one.

use std::fmt;
use std::io::Write;
use std::path::Path;

use retrievalguard::Alpha;
use retrievalguard::attack::{
    AttackFault, AttackSummary, Attacked, Cost, FACTORS, Mode, Pixels, Rates, caution,
};
use retrievalguard::storage::atomic;
use retrievalguard::storage::digest::Digest;
use retrievalguard::storage::sealed::seal;
use retrievalguard_encoder::pipeline::AttackRequest;
use serde::Serialize;
use serde_json::json;

use super::super::run_directory::ATTACK_FILE;
use crate::progress::tell;

/// Queries that a message lists by name.
const LISTED: usize = 20;

/// Certificates that do not hold, or an attack that proves nothing.
#[derive(Debug)]
pub(crate) struct AttackFailed(String);

impl fmt::Display for AttackFailed {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl std::error::Error for AttackFailed {}

#[derive(Serialize)]
struct Query<'a> {
    identity: &'a str,
    #[serde(flatten)]
    attacked: &'a Attacked,
}

fn total(results: &[Attacked]) -> Cost {
    let mut cost = Cost::default();
    results.iter().for_each(|result| cost.add(result.cost));
    cost
}

/// Writes the results; the same results give the same bytes.
pub(super) fn write(
    request: &AttackRequest<'_>,
    (alpha, table): (Option<Alpha>, Digest),
    results: &[Attacked],
    folder: &Path,
) -> anyhow::Result<()> {
    let Cost { encoder_calls, gradient_passes } = total(results);
    let (effort, judging, summary) = (request.effort, request.judging, AttackSummary::new(results));
    let queries: Vec<Query<'_>> = request
        .queries
        .iter()
        .zip(results)
        .map(|(query, attacked)| Query { identity: &query.identity, attacked })
        .collect();
    let mut value = json!({
        "table": table,
        "certificate": request.certificate,
        "alpha": alpha,
        "judge_alpha": judging.map(|judging| judging.alpha),
        "sigma": request.sigma,
        "seed": request.seed,
        "judge_seed": judging.map(|judging| judging.seed),
        "factors": FACTORS,
        "mode": request.gradients.mode(),
        "gradients": request.gradients.mode().gradients(),
        "caution": caution(request.gradients.mode(), summary.plain_right, summary.plain_broken),
        "plain_gallery": if request.gallery.plain().is_some() { "clean" } else { "stored" },
        "pixels": effort.pixels,
        "budget": {
            "steps": effort.steps,
            "restarts": effort.restarts,
            "noise": effort.noise,
            "encoder_calls": encoder_calls,
            "gradient_passes": gradient_passes,
        },
        "queries": queries,
    });
    if let Some(judging) = judging {
        value["budget"]["judging_pilot"] = json!(judging.pilot);
        value["budget"]["judging_samples"] = json!(judging.samples);
        value["budget"]["refinements"] = json!(judging.refinements);
    }
    Ok(atomic::write(&folder.join(ATTACK_FILE), seal(&value)?.as_bytes())?)
}

/// Prints the table and what follows from it.
pub(super) fn show(
    request: &AttackRequest<'_>,
    (alpha, asked): (Option<Alpha>, usize),
    results: &[Attacked],
    file: &Path,
    out: &mut dyn Write,
) -> anyhow::Result<()> {
    let summary = AttackSummary::new(results);
    let (effort, judging) = (request.effort, request.judging);
    let Cost { encoder_calls, gradient_passes } = total(results);
    let mode = match request.gradients.mode() {
        Mode::WhiteBox => "white box",
        Mode::BlackBox => "black box",
    };
    let pixels = match effort.pixels {
        Pixels::Free => "",
        Pixels::Clipped => ", pixels kept in [0, 1]",
    };
    writeln!(
        out,
        "{} certified queries attacked, {} {}; {mode}, gradients {}{pixels}",
        results.len(),
        request.certificate,
        match (alpha, request.sigma) {
            (Some(alpha), Some(sigma)) => format!("at alpha {alpha}, sigma {sigma}"),
            _ => "without noise".to_owned(),
        },
        request.gradients.mode().gradients()
    )?;
    writeln!(
        out,
        "budget: {} restarts of {} steps{}; {encoder_calls} encoder calls and {gradient_passes} gradient passes in all",
        effort.restarts,
        effort.steps,
        match judging {
            Some(_) => format!(", {} noisy copies each", effort.noise),
            None => String::new(),
        }
    )?;
    match judging {
        Some(judging) => writeln!(
            out,
            "judge: fresh noise (seed {}), up to {} samples per perturbation; what is proved of a query is wrong with probability {} at most",
            String::from(judging.seed),
            judging.samples,
            judging.alpha
        )?,
        None => {
            writeln!(out, "judge: none; what the encoder makes of a picture is seen, in double precision")?;
        }
    }
    writeln!(out)?;
    write!(out, "{:<28}", "size, in certified radii")?;
    for factor in FACTORS {
        write!(out, "{factor:>9}")?;
    }
    writeln!(out)?;
    let broken = |rates: Rates| share(rates.broken, rates.total());
    let held = |rates: Rates| share(rates.held, rates.total());
    let noise = [
        ("smoothed, proved broken", summary.smoothed.map(broken)),
        ("smoothed, proved to hold", summary.smoothed.map(held)),
        ("smoothed, undecided", summary.smoothed.map(|rates| share(rates.undecided, rates.total()))),
        ("plain, broken by this attack", summary.plain.map(broken)),
    ];
    let without =
        [("broken by this attack", summary.plain.map(broken)), ("not broken by it", summary.plain.map(held))];
    for (what, shares) in if judging.is_some() { &noise[..] } else { &without[..] } {
        write!(out, "{what:<28}")?;
        for share in shares {
            write!(out, "{share:>9}")?;
        }
        writeln!(out)?;
    }
    writeln!(out)?;
    brackets(results, &summary, out)?;
    if let Some(caution) = caution(request.gradients.mode(), summary.plain_right, summary.plain_broken) {
        writeln!(out, "caution: {caution}")?;
    }
    writeln!(out, "{}", file.display())?;
    conclude(request, (alpha, asked), &summary)
}

fn share(count: usize, total: usize) -> String {
    if total == 0 { "-".to_owned() } else { format!("{:.3}", count as f64 / total as f64) }
}

/// How far the breaks are above the certified radii.
fn brackets(results: &[Attacked], summary: &AttackSummary, out: &mut dyn Write) -> anyhow::Result<()> {
    let median = |mut ratios: Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        let middle = ratios.get(ratios.len() / 2).filter(|ratio| ratio.is_finite());
        middle.map_or("beyond the largest size".to_owned(), |ratio| format!("{ratio:.2} certified radii"))
    };
    let ratio =
        |result: &Attacked, norm: Option<f64>| norm.map_or(f64::INFINITY, |norm| norm / result.radius);
    let certified = results.iter().map(|result| ratio(result, result.certified().1)).collect();
    let right = results.iter().filter(|result| result.plain_right);
    let plain = right.map(|result| ratio(result, result.plain_smallest_break)).collect();
    writeln!(
        out,
        "bracket: certified <= true <= smallest proved break, for {} of {} queries, the others have no upper end; median break {}",
        summary.bracketed,
        summary.queries,
        median(certified)
    )?;
    if results.iter().all(|result| result.smoothed.is_empty()) {
        return Ok(());
    }
    writeln!(
        out,
        "plain: {} of {} queries retrieved rightly, {} of them broken; median break {}",
        summary.plain_right,
        summary.queries,
        summary.plain_broken,
        median(plain)
    )?;
    Ok(())
}

/// A warning for every break inside, a failure for more than chance allows.
fn conclude(
    request: &AttackRequest<'_>,
    (alpha, asked): (Option<Alpha>, usize),
    summary: &AttackSummary,
) -> anyhow::Result<()> {
    let broken = summary.inside.len();
    let names: Vec<&str> = summary
        .inside
        .iter()
        .take(LISTED)
        .map(|&position| request.queries[position].identity.as_str())
        .collect();
    let more = if broken > LISTED { format!(" and {} more", broken - LISTED) } else { String::new() };
    let listed = names.join(", ") + &more;
    let Some((alpha, judge_alpha)) = alpha.zip(request.judging.map(|judging| judging.alpha)) else {
        if broken > 0 {
            let queries = summary.queries;
            return Err(AttackFailed(format!(
                "{broken} of {queries} certificates that hold always are broken inside their radii: {listed}"
            ))
            .into());
        }
        tell(format_args!("no certificate was broken inside its radius"));
        return Ok(());
    };
    match summary.fault(asked, alpha, judge_alpha) {
        Some(AttackFault::Certificates { broken, probability }) => Err(AttackFailed(format!(
            "{broken} of {} certificates are broken inside their radii, which has probability {probability:.1e} among \
             {asked} queries if each is wrong with probability {alpha}: {listed}",
            summary.queries
        ))
        .into()),
        Some(AttackFault::Attack { plain }) => Err(AttackFailed(format!(
            "the attack broke none of {plain} plain retrievals, so that it broke no certificate says nothing; \
             wanted more --steps, --restarts or --noise"
        ))
        .into()),
        None if broken > 0 => {
            let chance = summary.chance(asked, alpha, judge_alpha);
            tell(format_args!(
                "warning: {broken} of {} certificates are broken inside their radii, as happens with probability \
                 {chance:.2} among {asked} queries if each is wrong with probability {alpha}: {listed}",
                summary.queries
            ));
            Ok(())
        }
        None => {
            if summary.plain_broken == 0 {
                tell(format_args!(
                    "warning: no certificate was broken inside its radius, nor any of {} plain retrievals that are right, so \
                     that says little of the certificates",
                    summary.plain_right
                ));
            } else {
                tell(format_args!("no certificate was broken inside its radius"));
            }
            Ok(())
        }
    }
}
