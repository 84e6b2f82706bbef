//! Which engine will run here, where it was found, and what would make it faster.
//!
//! ```
//! use retrievalguard_encoder::doctor::doctor;
//! use retrievalguard_encoder::engine::{Engine, EngineOptions};
//!
//! let report = doctor(&EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() });
//! assert_eq!(report.engine.map(|engine| engine.engine), Some(Engine::Rten));
//! assert!(report.cores > 0);
//! ```

use std::fmt;
use std::path::Path;
use std::thread;

use serde::{Deserialize, Serialize};

use crate::engine::{
    Attempt, Engine, EngineError, EngineOptions, EngineReport, LibraryLocation, Provider, Runtime,
};

/// What [`doctor`] found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DoctorReport {
    /// Version of this program.
    pub version: String,
    /// What the program was built from and with, where it says so.
    #[serde(default)]
    pub build: Option<BuildReport>,
    /// The engine that will run, unless what was asked for is not there.
    pub engine: Option<EngineReport>,
    /// Where its library was found.
    pub place: Option<LibraryLocation>,
    /// Where onnxruntime was looked for in vain.
    pub attempts: Vec<Attempt>,
    /// Why nothing can run as asked.
    pub failure: Option<String>,
    /// Number of threads that can run at once.
    pub cores: usize,
    /// Vector instructions of the processor that engines use, the widest last.
    pub instructions: Vec<String>,
    /// What would make it faster.
    pub advice: Vec<String>,
}

/// What a program was built from and with.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildReport {
    /// The commit of a release; none in a build by hand.
    pub commit: Option<String>,
    /// What was chosen to be in it.
    pub features: Vec<String>,
    /// The engines that it can use.
    pub engines: Vec<Engine>,
}

impl fmt::Display for BuildReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let commit = self.commit.as_deref().unwrap_or("unknown: not built as a release");
        let features = if self.features.is_empty() { "none".to_owned() } else { self.features.join(" ") };
        let engines: Vec<String> = self.engines.iter().map(Engine::to_string).collect();
        writeln!(out, "commit          {commit}")?;
        writeln!(out, "features        {features}")?;
        write!(out, "engines         {}", engines.join(" "))
    }
}

/// Finds out which engine these options lead to.
pub fn doctor(options: &EngineOptions) -> DoctorReport {
    let mut report = DoctorReport {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        build: None,
        engine: None,
        place: None,
        attempts: Vec::new(),
        failure: None,
        cores: thread::available_parallelism().map_or(1, usize::from),
        instructions: instructions().into_iter().map(str::to_owned).collect(),
        advice: Vec::new(),
    };
    match Runtime::choose(options) {
        Ok(runtime) => {
            report.engine = Some(runtime.report(options.provider));
            match runtime {
                Runtime::Onnxruntime(library) => {
                    report.place = Some(library.place);
                    report.attempts = library.attempts;
                }
                Runtime::Rten(attempts) => report.attempts = attempts,
                Runtime::Double => {}
            }
        }
        Err(error) => {
            report.failure = Some(error.to_string());
            if let EngineError::NoOnnxruntime { attempts } = error {
                report.attempts = attempts;
            }
        }
    }
    report.advice = advice(&report, options.provider, Path::new("/dev/nvidia0").exists());
    report
}

fn advice(report: &DoctorReport, provider: Provider, nvidia: bool) -> Vec<String> {
    let mut advice = Vec::new();
    let wanted = format!("1.{}", ort::MINOR_VERSION);
    match report.engine.as_ref().map(|engine| engine.engine) {
        Some(Engine::Rten) => advice.push(format!(
            "onnxruntime is two to five times as fast as the built-in engine: \
             `python3 -m pip install onnxruntime` ({wanted} or later), or point ORT_DYLIB_PATH at its library"
        )),
        None => advice.push(format!(
            "install onnxruntime {wanted} or later with `python3 -m pip install onnxruntime`, \
             or leave the choice of the engine open"
        )),
        Some(Engine::Onnxruntime | Engine::Double) => {}
    }
    if nvidia && provider == Provider::Cpu {
        advice.push(
            "there is an NVIDIA card: `python3 -m pip install onnxruntime-gpu` and provider `cuda` (untested) use it"
                .to_owned(),
        );
    }
    let has = |name: &str| report.instructions.iter().any(|found| found == name);
    if cfg!(target_arch = "x86_64") && !has("avx2") {
        advice.push("this processor has no AVX2; one that has it is several times as fast".to_owned());
    } else if cfg!(target_arch = "x86_64") && !(has("avx512vnni") || has("avxvnni")) {
        advice.push("int8 models gain little here: the processor has no VNNI instructions".to_owned());
    }
    advice
}

/// The processor's vector instructions by their usual names.
fn instructions() -> Vec<&'static str> {
    #[cfg_attr(
        not(any(target_arch = "x86_64", target_arch = "aarch64")),
        expect(unused_mut, reason = "other processors are not asked")
    )]
    let mut found = Vec::new();
    #[cfg(target_arch = "x86_64")]
    {
        let known = [
            ("sse4.1", is_x86_feature_detected!("sse4.1")),
            ("avx", is_x86_feature_detected!("avx")),
            ("fma", is_x86_feature_detected!("fma")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("avxvnni", is_x86_feature_detected!("avxvnni")),
            ("avx512f", is_x86_feature_detected!("avx512f")),
            ("avx512vnni", is_x86_feature_detected!("avx512vnni")),
        ];
        found.extend(known.into_iter().filter_map(|(name, has)| has.then_some(name)));
    }
    #[cfg(target_arch = "aarch64")]
    {
        let known = [
            ("neon", std::arch::is_aarch64_feature_detected!("neon")),
            ("dotprod", std::arch::is_aarch64_feature_detected!("dotprod")),
            ("i8mm", std::arch::is_aarch64_feature_detected!("i8mm")),
            ("sve", std::arch::is_aarch64_feature_detected!("sve")),
        ];
        found.extend(known.into_iter().filter_map(|(name, has)| has.then_some(name)));
    }
    found
}

impl fmt::Display for DoctorReport {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(out, "retrievalguard  {}", self.version)?;
        if let Some(build) = &self.build {
            writeln!(out, "{build}")?;
        }
        match &self.engine {
            Some(engine) => writeln!(
                out,
                "engine          {} {}, provider {}",
                engine.engine, engine.version, engine.provider
            )?,
            None => writeln!(out, "engine          none")?,
        }
        if let Some(library) = self.engine.as_ref().and_then(|engine| engine.library.as_ref()) {
            let place = self.place.map_or_else(String::new, |place| format!(" ({place})"));
            writeln!(out, "library         {}{place}", library.display())?;
        }
        for attempt in &self.attempts {
            writeln!(out, "not usable      {attempt}")?;
        }
        if let Some(failure) = &self.failure {
            writeln!(out, "failure         {failure}")?;
        }
        writeln!(out, "cores           {}", self.cores)?;
        write!(out, "instructions    {}", self.instructions.join(" "))?;
        for advice in &self.advice {
            write!(out, "\nadvice          {advice}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_a_failure_with_its_reason_and_advice() {
        let library = Some("/nowhere/libonnxruntime.so".into());
        let report = doctor(&EngineOptions { library, ..EngineOptions::default() });
        assert_eq!(report.engine, None);
        assert_eq!(report.attempts.len(), 1);
        assert!(report.to_string().contains("/nowhere/libonnxruntime.so"), "{report}");
        assert!(report.advice[0].contains("pip install onnxruntime"), "{report}");
    }

    #[test]
    fn the_built_in_engine_is_always_there_and_says_what_is_faster() {
        let report = doctor(&EngineOptions { engine: Some(Engine::Rten), ..EngineOptions::default() });
        assert_eq!(report.failure, None);
        assert!(report.to_string().contains("engine          rten"), "{report}");
        assert!(report.advice[0].contains("ORT_DYLIB_PATH"), "{report}");
        let gpu = advice(&report, Provider::Cpu, true);
        assert!(gpu.iter().any(|line| line.contains("onnxruntime-gpu")), "{gpu:?}");
    }

    #[test]
    fn rten_has_no_other_provider() {
        let provider = Provider::Cuda;
        let options = EngineOptions { engine: Some(Engine::Rten), provider, ..EngineOptions::default() };
        assert!(doctor(&options).failure.unwrap().contains("`cuda` needs onnxruntime"));
    }
}
