//! Input that must be refused, with a message that names it, what was found and what was wanted.

use std::fs;

use crate::arrays::with_header;
use crate::sandbox::{ENCODER, PICTURES, Sandbox, write_png};

#[test]
fn models_that_cannot_be_used_are_named() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let index = |model: &str| {
        sandbox.run(&format!("index pictures --gallery gallery --sigma 0.1 --engine rten --model {model}"))
    };
    index("model/missing.onnx").fails(2, &["model `model/missing.onnx` cannot be read", "No such file"]);
    index("missing.onnx").fails(2, &["model `missing.onnx` cannot be read", "No such file"]);
    index("model").fails(2, &["model `model` is not a file"]);
    let whole = sandbox.bytes("model/convolutional.onnx");
    for length in [0, 40, whole.len() / 2, whole.len() - 1] {
        sandbox.write("model/half.onnx", &whole[..length]);
        index("model/half.onnx").fails(2, &["model/half.onnx"]);
    }
    index("model/half.onnx").fails(2, &["truncated"]);
    sandbox.write("model/page.onnx", "<!DOCTYPE html>");
    index("model/page.onnx").fails(2, &["model/page.onnx"]);

    sandbox.add_model("float16.onnx");
    index("model/float16.onnx").fails(2, &["input `pictures`", "is float16, wanted float32"]);
    sandbox.add_model("wrong_rank.onnx");
    index("model/wrong_rank.onnx").fails(2, &["[batch, 16, 2, 2], wanted [batch, dimension]"]);
    sandbox.add_model("zero.onnx");
    index("model/zero.onnx").fails(1, &["length 0"]);
    fs::remove_dir_all(sandbox.path("gallery")).unwrap();

    let config = sandbox.text("model/encoder.toml");
    let with_config = |text: &str| {
        sandbox.write("other.toml", text);
        index("model/convolutional.onnx --contract other.toml")
    };
    let wide = config.replace("width = 16", "width = 24").replace("size = 16", "size = 24");
    with_config(&wide).fails(2, &["has shape [batch, 3, 16, 16], the model config says [batch, 3, 16, 24]"]);
    with_config(&config.replace("channels = 3", "channels = 2"))
        .fails(2, &["model config `other.toml`", "`input.channels` is 2, wanted 1 or 3"]);
    with_config(&config.replace("[crop]", "[corp]")).fails(2, &["model config `other.toml`", "corp"]);
    sandbox.write("alone/convolutional.onnx", whole);
    index("alone/convolutional.onnx").fails(2, &["has no model config", "`alone/encoder.toml`"]);
    let line =
        format!("index pictures --gallery gallery {ENCODER} --onnxruntime /nowhere --engine onnxruntime");
    sandbox.run(&line).fails(2, &["no usable onnxruntime was found", "`/nowhere`"]);
    sandbox
        .run(&format!("index pictures --gallery gallery {ENCODER} --provider cuda"))
        .fails(2, &["`cuda` needs onnxruntime"]);
    // Embeddings longer than the model config promises are refused, or projected on request.
    let loose = config.replace("normalise = true", "normalise = false\nnorm_bound = 0.001");
    with_config(&loose).fails(2, &["norm", "0.001"]);
    assert!(!sandbox.path("gallery/manifest.json").exists());
}

#[test]
fn folders_without_usable_pictures_are_named() {
    let sandbox = Sandbox::new();
    let index = |pictures: &str| sandbox.run(&format!("index {pictures} --gallery gallery {ENCODER}"));
    index("nowhere").fails(2, &["`nowhere` cannot be read", "No such file"]);
    fs::create_dir(sandbox.path("empty")).unwrap();
    index("empty").fails(2, &["data set `empty` holds no pictures", "wanted at least one"]);
    sandbox.write("notes/class/readme.txt", "no picture");
    index("notes").fails(2, &["data set `notes` holds no pictures (files of other kinds: 1)"]);
    sandbox.draw("pictures");
    write_png(&sandbox.path("pictures/stray.png"), 4, 4, &[7; 48]);
    index("pictures").fails(2, &["picture `pictures/stray.png` has no label", "wanted root/class/picture"]);
    fs::remove_file(sandbox.path("pictures/stray.png")).unwrap();
    index("pictures --limit 0").fails(2, &["--limit"]);
    index("pictures --split cub/test")
        .fails(2, &["image-folder, has no split cub/test: it does not mark any"]);
    index("pictures --format mnist").fails(2, &["format is `mnist`, wanted one of auto, image-folder, csv"]);
    index("pictures --sigma 0").fails(2, &["sigma is 0, wanted a number from 0.0001 to 2"]);
    index("pictures --sigma 25").fails(2, &["sigma is 25", "25 of 255 grey levels was meant, it is 0.098"]);
    index("pictures --sigma much").fails(2, &["sigma is `much`, wanted a number"]);

    sandbox.write("list.csv", "label,path\na,b.png\n");
    index("list.csv").fails(2, &["list `list.csv` has no column `split`", "`label`, `path`"]);
    let mut annotations = b"MATLAB 5.0 MAT-file".to_vec();
    annotations.resize(124, b' ');
    annotations.extend_from_slice(b"\x00\x01IM");
    // A compressed element that announces more than there is.
    annotations.extend_from_slice(&[15, 0, 0, 0, 0, 16, 0, 0, 0x78, 0x9c, 1, 2, 3]);
    sandbox.write("cars/cars_annos.mat", &annotations);
    index("cars").fails(2, &["MAT-file `cars/cars_annos.mat`"]);
    sandbox.write("cars/cars_annos.mat", &annotations[..100]);
    index("cars").fails(2, &["MAT-file `cars/cars_annos.mat`"]);
    assert!(!sandbox.path("gallery").exists());
}

#[test]
fn a_broken_picture_stops_the_run_or_is_skipped_and_counted() {
    let sandbox = Sandbox::new();
    sandbox.draw("pictures");
    let whole = sandbox.bytes("pictures/class-1/0.png");
    sandbox.write("pictures/class-1/0.png", &whole[..60]);
    sandbox.write("pictures/class-3/2.png", "GIF89a");
    let index = format!("index pictures --gallery gallery {ENCODER} --threads 1");
    let run = sandbox.run(&index).fails(2, &["picture `pictures/class-1/0.png` is a broken PNG file"]);
    run.tells(&["hint: --skip-broken skips broken pictures"]);
    // What the hint says goes on with what was done.
    let skipping = format!("{index} --skip-broken");
    let run = sandbox.run(&skipping).succeeds();
    assert_eq!(run.out, "gallery: 28 items of dimension 8\n");
    run.tells(&[
        "6 pictures were done before",
        "skipped: class-1/0.png: ",
        "skipped: class-3/2.png: picture `pictures/class-3/2.png` begins with",
        "2 broken pictures were skipped",
    ]);

    let certify = format!(
        "certify pictures --gallery gallery {ENCODER} --threads 1 --samples 50 --pilot 20 --out run --jsonl"
    );
    sandbox.run(&certify).fails(2, &["pictures/class-1/0.png", "hint: --skip-broken"]);
    let run = sandbox.run(&format!("{certify} --skip-broken")).succeeds();
    run.tells(&["6 queries were done before", "2 broken pictures were skipped", "leave-one-out: "]);
    assert_eq!(sandbox.text("run/certificates.jsonl").lines().count(), PICTURES - 2);
    // Skipped once is not done: without the flag it is an error again.
    sandbox.run(&certify).fails(2, &["pictures/class-1/0.png"]);
    let query = format!("query pictures/class-1/0.png --gallery gallery {ENCODER}");
    sandbox.run(&query).fails(2, &["picture `pictures/class-1/0.png` is a broken PNG file"]);

    // A list may name a file that is not there.
    let list =
        "label,path,split,is_query,is_gallery\na,pictures/class-0/0.png,test,1,1\nb,gone.png,test,1,1\n";
    sandbox.write("list.csv", list);
    let index = format!("index list.csv --gallery listed {ENCODER}");
    sandbox.run(&index).fails(2, &["gone.png", "No such file", "hint: --skip-broken"]);
    let run = sandbox.run(&format!("{index} --skip-broken")).succeeds();
    run.tells(&["skipped: gone.png", "1 broken pictures were skipped"]);
    // The labels that are left may be one, and among its pictures every answer is right.
    let recall = format!("recall list.csv {ENCODER} --skip-broken");
    sandbox.run(&recall).fails(2, &["all 1 pictures have the label `a`"]);
    sandbox.write("only/class/broken.png", "");
    let line = format!("index only --gallery nothing {ENCODER} --skip-broken");
    sandbox.run(&line).fails(2, &["no picture is left: all 1 were skipped"]);
}

#[test]
fn galleries_that_do_not_belong_to_the_queries_are_refused_with_the_reason() {
    let sandbox = Sandbox::indexed();
    let certify = |flags: &str| {
        let line = format!("certify pictures --gallery gallery {ENCODER} --samples 50 --pilot 20 --out run");
        sandbox.run(&format!("{line} {flags}"))
    };
    let hint = "hint: make the gallery again with `retrievalguard index`";
    let leave = "hint: leave --sigma out to use the gallery's";
    certify("--sigma 0.25")
        .fails(2, &["gallery `gallery` was smoothed with sigma 0.1, the queries with 0.25", leave]);
    let query = format!("query pictures/class-0/0.png --gallery gallery {ENCODER} --sigma 0.25");
    sandbox.run(&query).fails(2, &["was smoothed with sigma 0.1, the queries with 0.25", leave]);
    sandbox.add_model("fixed_batch.onnx");
    certify("--model model/fixed_batch.onnx").fails(2, &["was embedded by model bb0d76124e03…", hint]);
    let config = sandbox.text("model/encoder.toml").replace("bilinear", "bicubic");
    sandbox.write("other.toml", config);
    certify("--contract other.toml").fails(2, &["was prepared by model config", hint]);
    certify("--gallery pictures").fails(2, &["`pictures` has no manifest.json"]);
    certify("--gallery nowhere").fails(2, &["`nowhere` has no manifest.json"]);
    certify("--certificate half-moon").fails(2, &["`half-moon` is not a certificate", "or all"]);

    // A gallery of one label leaves nothing to tell it from.
    sandbox.run(&format!("index pictures --limit 6 --gallery one {ENCODER}")).succeeds();
    certify("--gallery one --limit 1")
        .fails(2, &["query `class-0/0.png`", "wrong answer, wanted at least one"]);
    let mut vectors = sandbox.bytes("gallery/vectors.npy");
    *vectors.last_mut().unwrap() ^= 1;
    sandbox.write("gallery/vectors.npy", vectors);
    certify("").fails(2, &["`gallery/vectors.npy` has sha256", "its manifest says"]);
    sandbox.write("gallery/manifest.json", "{}");
    certify("").fails(2, &["gallery/manifest.json", "gallery manifest"]);
}

#[test]
fn tables_and_arrays_that_are_not_are_refused() {
    let sandbox = Sandbox::new();
    sandbox.write("lying.npy", with_header("<f4", false, &[1_000_000_000, 512], &[0; 64]));
    sandbox.write("labels.txt", "a\nb\n");
    let line = "import --npy lying.npy --labels labels.txt --gallery gallery";
    let words = ["array `lying.npy` has 64 bytes of numbers", "[1000000000, 512]", "2048000000000"];
    sandbox.run(line).fails(2, &words);
    sandbox.write("two.npy", with_header("<f4", false, &[2, 1], &[0, 0, 192, 127, 0, 0, 0, 0]));
    sandbox.run("import --npy two.npy --labels labels.txt --gallery gallery").fails(2, &["two.npy", "NaN"]);
    sandbox.write("latin.txt", b"a\n\xe9\n");
    sandbox
        .run("import --npy two.npy --labels latin.txt --gallery gallery")
        .fails(2, &["latin.txt", "not UTF-8"]);
    sandbox.write("no.parquet", "PAR1 but no more");
    sandbox.run("import --parquet no.parquet --gallery gallery").fails(2, &["table `no.parquet`"]);
    sandbox.run("import --clip-retrieval model --gallery gallery").fails(2, &["`model`", "img_emb"]);
    assert!(!sandbox.path("gallery").exists());

    sandbox.run("evaluate nowhere.parquet").fails(2, &["`nowhere.parquet`", "No such file"]);
    sandbox.run("evaluate no.parquet").fails(2, &["table `no.parquet` is not a readable Parquet file"]);
    sandbox.write("empty.jsonl", "");
    sandbox.run("evaluate empty.jsonl").fails(2, &["`empty.jsonl` has no rows"]);
    sandbox.write("odd.jsonl", "{\"identity\": 3}\n");
    sandbox.run("evaluate odd.jsonl").fails(2, &["row 0 of `odd.jsonl`", "a row of certificates"]);
    sandbox.run("evaluate odd.jsonl --radii 0,-1").fails(2, &["--radii", "`-1`"]);
}

#[test]
fn numbers_beyond_all_memory_are_refused_before_anything_begins() {
    let sandbox = Sandbox::indexed();
    let refused =
        "4294967295 samples of 8 numbers take 137438953440 bytes of memory, wanted at most 17179869184";
    for flag in ["--samples", "--pilot"] {
        let certify = format!("certify pictures --gallery gallery {ENCODER} {flag} 4294967295 --out run");
        sandbox.run(&certify).fails(2, &[refused]);
        let query = format!("query pictures/class-0/0.png --gallery gallery {ENCODER} {flag} 4294967295");
        sandbox.run(&query).fails(2, &[refused]);
    }
    assert!(!sandbox.path("run").exists());
    let serve = format!("serve --gallery gallery {ENCODER} --port 0");
    sandbox.run(&format!("{serve} --max-samples 4294967295")).fails(2, &[refused]);
    sandbox.run(&format!("{serve} --max-job-samples 4294967295")).fails(2, &[refused]);
    for (flag, most) in [
        ("--max-body", 1_024),
        ("--max-megapixels", 1_000),
        ("--max-seconds", 86_400),
        ("--queue", 65_536),
        ("--per-client", 65_536),
        ("--connections", 65_536),
        ("--threads", 1_024),
        ("--batch", 4_096),
    ] {
        for found in [u64::MAX, most + 1, 0] {
            let wanted = format!("wanted a whole number from 1 to {most}");
            sandbox.run(&format!("{serve} {flag} {found}")).fails(2, &[flag, &found.to_string(), &wanted]);
        }
    }
    sandbox.run(&format!("{serve} --grace {}", u64::MAX)).fails(2, &["--grace", "0..=86400"]);
    for command in ["index pictures --gallery other", "recall pictures", "check-model pictures"] {
        let line = format!("{command} {ENCODER} --threads {}", u64::MAX).replace("--sigma 0.1", "");
        let sigma = if command.starts_with("check") { "" } else { "--sigma 0.1" };
        sandbox.run(&format!("{line} {sigma}")).fails(2, &["--threads", "from 1 to 1024"]);
    }
    sandbox
        .run("draw products --out drawn --threads 99999999")
        .fails(2, &["--threads", "wanted a whole number from 1 to 1024"]);
}

#[test]
fn a_zipped_bomb_is_refused_by_what_it_announces() {
    let sandbox = Sandbox::new();
    // Four gigabytes of black in a header and a stream that nobody has to read.
    let header = |lengths: &[u32]| {
        let mut bytes = vec![0, 0, 8, lengths.len() as u8];
        bytes.extend(lengths.iter().flat_map(|length| length.to_be_bytes()));
        bytes
    };
    let announced = header(&[65_536, 256, 255]);
    let length = announced.len() as u16;
    // The header of gzip, and a block that is stored as it is; no sum follows, because nobody comes so far.
    let beginning = [0x1F, 0x8B, 8, 0, 0, 0, 0, 0, 0, 0xFF, 1];
    let block = [length.to_le_bytes(), (!length).to_le_bytes()].concat();
    sandbox.write("digits/train-images-idx3-ubyte.gz", [&beginning[..], &block, &announced].concat());
    sandbox.write("digits/train-labels-idx1-ubyte", [header(&[2]), vec![1, 2]].concat());
    let index = format!("index digits --gallery gallery {ENCODER}");
    sandbox.run(&index).fails(
        2,
        &[
            "`digits/train-images-idx3-ubyte.gz`",
            "dimensions [65536, 256, 255], which take 4311744512 bytes of memory, wanted at most 33554432",
        ],
    );
}
