//! A folder with pictures and models, and the program run in it.

use std::fs;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::Value;
use tempfile::TempDir;

pub(crate) const CLASSES: usize = 5;
pub(crate) const PER_CLASS: usize = 6;
pub(crate) const PICTURES: usize = CLASSES * PER_CLASS;

/// Every certificate, in the order of tables.
pub(crate) const CERTIFICATES: [&str; 8] = [
    "paper",
    "paper-linear",
    "paper-repaired",
    "paper-frozen",
    "half-space-mean",
    "half-space",
    "vote",
    "pairwise",
];

/// What nearly every command that embeds is given.
pub(crate) const ENCODER: &str = "--model model/convolutional.onnx --sigma 0.1 --engine rten";

/// A temporary folder, in which commands run, so that paths are short and relative.
pub(crate) struct Sandbox {
    folder: TempDir,
}

impl Sandbox {
    /// With the convolutional model in `model/`.
    pub(crate) fn new() -> Self {
        let sandbox = Self { folder: tempfile::tempdir().unwrap() };
        sandbox.add_model("convolutional.onnx");
        sandbox
    }

    /// With the model, thirty pictures in `pictures/`, and their gallery in `gallery/`.
    pub(crate) fn indexed() -> Self {
        let sandbox = Self::new();
        sandbox.draw("pictures");
        sandbox.run(&format!("index pictures --gallery gallery {ENCODER}")).succeeds();
        sandbox
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).expect(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        String::from_utf8(self.bytes(name)).unwrap()
    }

    pub(crate) fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    /// Copies a model of the encoder crate's tests, and the model config, to `model/`.
    pub(crate) fn add_model(&self, name: &str) {
        let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../retrievalguard-encoder/tests/models");
        for file in [name, "encoder.toml"] {
            self.write(&format!("model/{file}"), fs::read(models.join(file)).unwrap());
        }
    }

    /// Draws thirty pictures of odd sizes, six of each class: a colour with a gradient that varies.
    pub(crate) fn draw(&self, folder: &str) {
        const COLOURS: [[i32; 3]; CLASSES] =
            [[230, 30, 30], [30, 230, 30], [30, 30, 230], [220, 220, 20], [20, 20, 20]];
        for (class, colour) in COLOURS.into_iter().enumerate() {
            fs::create_dir_all(self.path(&format!("{folder}/class-{class}"))).unwrap();
            for variant in 0..PER_CLASS {
                let (width, height) = (20 + 3 * variant, 40 - 4 * variant);
                let mut pixels = Vec::with_capacity(3 * width * height);
                for place in 0..width * height {
                    let (row, column) = (place / width, place % width);
                    let wave = (column * (class + 1) * 7 + row * (CLASSES - class) * 5 + variant * 9) % 64;
                    let wave = wave as i32 - 32;
                    for (channel, base) in colour.into_iter().enumerate() {
                        let shift = if channel == class % 3 { -wave / 2 } else { wave };
                        pixels.push((base + shift + 4 * variant as i32).clamp(0, 255) as u8);
                    }
                }
                let path = self.path(&format!("{folder}/class-{class}/{variant}.png"));
                write_png(&path, width, height, &pixels);
            }
        }
    }

    /// Runs the program with the words of `line` and waits for it.
    pub(crate) fn run(&self, line: &str) -> Finished {
        Finished::new(line, self.command(line).output().unwrap())
    }

    /// Runs the program by way of bash: `$0 "$@"` in `script` is the program with its words.
    pub(crate) fn run_in_bash(&self, script: &str, line: &str) -> Finished {
        let mut command = Command::new("bash");
        command.args(["-c", script, env!("CARGO_BIN_EXE_retrievalguard")]).args(line.split_whitespace());
        Finished::new(line, self.prepare(&mut command).output().unwrap())
    }

    /// Starts the program and does not wait.
    pub(crate) fn start(&self, line: &str) -> Child {
        self.command(line).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap()
    }

    fn command(&self, line: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_retrievalguard"));
        command.args(line.split_whitespace());
        self.prepare(&mut command);
        command
    }

    fn prepare<'c>(&self, command: &'c mut Command) -> &'c mut Command {
        command.current_dir(self.folder.path()).stdin(Stdio::null()).env_remove("RUST_LOG")
    }
}

pub(crate) fn write_png(path: &Path, width: usize, height: usize, pixels: &[u8]) {
    let file = BufWriter::new(fs::File::create(path).unwrap());
    let mut encoder = png::Encoder::new(file, width as u32, height as u32);
    encoder.set_color(png::ColorType::Rgb);
    encoder.set_depth(png::BitDepth::Eight);
    encoder.write_header().unwrap().write_image_data(pixels).unwrap();
}

/// What a command left behind.
#[derive(Debug)]
pub(crate) struct Finished {
    line: String,
    status: Option<i32>,
    pub(crate) out: String,
    pub(crate) errors: String,
}

impl Finished {
    pub(crate) fn new(line: &str, output: Output) -> Self {
        Self {
            line: line.to_owned(),
            status: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            errors: String::from_utf8(output.stderr).unwrap(),
        }
    }

    #[track_caller]
    pub(crate) fn succeeds(self) -> Self {
        self.ends_with_status(0)
    }

    /// Ends with exit status `status` and a message that has every one of `words`.
    #[track_caller]
    pub(crate) fn fails(self, status: i32, words: &[&str]) -> Self {
        let finished = self.ends_with_status(status);
        assert!(finished.errors.contains("error: "), "{finished}");
        finished.tells(words)
    }

    #[track_caller]
    pub(crate) fn ends_with_status(self, status: i32) -> Self {
        assert_eq!(self.status, Some(status), "{self}");
        self
    }

    /// Standard error has every one of `words`.
    #[track_caller]
    pub(crate) fn tells(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.errors.contains(word), "`{word}` is missing\n{self}");
        }
        self
    }

    /// Standard output has every one of `words`.
    #[track_caller]
    pub(crate) fn prints(self, words: &[&str]) -> Self {
        for word in words {
            assert!(self.out.contains(word), "`{word}` is missing\n{self}");
        }
        self
    }

    #[track_caller]
    pub(crate) fn json(&self) -> Value {
        let parsed = serde_json::from_str(&self.out);
        assert!(parsed.is_ok(), "{parsed:?}\n{self}");
        parsed.unwrap()
    }

    #[track_caller]
    pub(crate) fn json_lines(&self) -> Vec<Value> {
        json_lines(&self.out)
    }
}

impl std::fmt::Display for Finished {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { line, status, out, errors } = self;
        write!(formatter, "$ retrievalguard {line}\nstatus {status:?}\nstdout:\n{out}\nstderr:\n{errors}")
    }
}

#[track_caller]
pub(crate) fn json_lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

static SKIPPED: AtomicUsize = AtomicUsize::new(0);

/// Flags for onnxruntime, if the tests may use it; otherwise says past the harness, which would hide it, what is skipped.
pub(crate) fn onnxruntime(test: &str) -> Option<String> {
    if let Some(library) = library() {
        return Some(format!("--engine onnxruntime --onnxruntime {}", library.display()));
    }
    assert!(
        std::env::var_os("RETRIEVALGUARD_REQUIRE_ONNXRUNTIME").is_none_or(|value| value != "1"),
        "{test}: onnxruntime not found, and RETRIEVALGUARD_REQUIRE_ONNXRUNTIME is 1"
    );
    let count = SKIPPED.fetch_add(1, Ordering::Relaxed) + 1;
    let line = format!("skipped: {test}: onnxruntime not found ({count} so far)\n");
    std::io::stderr().write_all(line.as_bytes()).unwrap();
    None
}

fn library() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("ORT_DYLIB_PATH").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/venv/lib");
    let version = fs::read_dir(packages).ok()?.flatten().next()?.path();
    let folder = version.join("site-packages/onnxruntime/capi");
    folder.is_dir().then_some(folder)
}
