use super::*;

const PLAIN: &str = r#"
[input]
channels = 1
height = 28
width = 28
mean = [0.0]
std = [1.0]

[resize]
rule = "none"

[crop]
rule = "none"

[output]
normalise = true
"#;

fn folder(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("retrievalguard-config-{name}-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

#[test]
fn an_unknown_key_is_an_error_that_names_it_and_its_line() {
    let cases = [
        (PLAIN.replace("height", "heigth"), 4, "heigth"),
        (PLAIN.replace("rule = \"none\"\n\n[crop]", "rule = \"none\"\nsize = 3\n\n[crop]"), 10, "size"),
        (format!("{PLAIN}colour = 1\n"), 17, "colour"),
        (format!("surprise = 1\n{PLAIN}"), 1, "surprise"),
    ];
    for (text, line, key) in cases {
        let error = ModelConfig::from_toml(&text).unwrap_err();
        let ModelConfigFault::Toml { line: found, message } = error else { panic!("{key}: {error}") };
        assert!(message.contains(&format!("`{key}`")), "{key}: {message}");
        assert!(found.abs_diff(line) <= 2, "{key}: line {found}");
    }
}

#[test]
fn impossible_values_are_refused() {
    let cases = [
        ("channels = 1", "channels = 2", "input.channels"),
        ("height = 28", "height = 0", "input.height"),
        ("height = 28\nwidth = 28", "height = 65536\nwidth = 65536", "input"),
        ("mean = [0.0]", "mean = [0.0, 0.0]", "input.mean"),
        ("std = [1.0]", "std = [0.0]", "input.std"),
        ("std = [1.0]", "std = [1e-60]", "input.std"),
        ("mean = [0.0]", "mean = [nan]", "input.mean"),
        ("normalise = true", "normalise = false", "output.norm_bound"),
        ("normalise = true", "normalise = true\nnorm_bound = 2.0", "output.norm_bound"),
        (
            "rule = \"none\"\n\n[crop]",
            "rule = \"shorter-side\"\nsize = 32\ninterpolation = \"bicubic\"\n\n[crop]",
            "crop.rule",
        ),
        (
            "rule = \"none\"\n\n[crop]",
            "rule = \"shorter-side\"\nsize = 20\ninterpolation = \"bicubic\"\n\n[crop]",
            "resize.size",
        ),
        (
            "rule = \"none\"\n\n[crop]",
            "rule = \"exact\"\nheight = 20\nwidth = 28\ninterpolation = \"nearest\"\n\n[crop]",
            "resize",
        ),
    ];
    for (from, to, wanted) in cases {
        let error = ModelConfig::from_toml(&PLAIN.replace(from, to)).unwrap_err();
        assert!(matches!(&error, ModelConfigFault::Value { field, .. } if *field == wanted), "{to}: {error}");
    }
}

#[test]
fn what_is_written_reads_back_and_has_the_same_hash() {
    for text in [PLAIN.to_owned(), PLAIN.replace("normalise = true", "normalise = false\nnorm_bound = 2.5")] {
        let config = ModelConfig::from_toml(&text).unwrap();
        let again = ModelConfig::from_toml(&config.to_toml()).unwrap();
        assert_eq!(again, config);
        assert_eq!(again.hash(), config.hash());
    }
}

#[test]
fn every_field_changes_the_hash() {
    let config = ModelConfig::from_toml(PLAIN).unwrap();
    let changes: [fn(&mut ModelConfig); 9] = [
        |config| config.input.name = Some("image".to_owned()),
        |config| config.input.width = 29,
        |config| config.input.channel_order = ChannelOrder::Bgr,
        |config| config.input.layout = Layout::Nhwc,
        |config| config.input.mean[0] = 1e-9,
        |config| config.input.std[0] = 0.999_999_999,
        |config| config.crop = Crop::Centre,
        |config| config.output.name = Some("embedding".to_owned()),
        |config| config.output.normalise = false,
    ];
    let mut hashes = vec![config.hash()];
    for change in changes {
        let mut other = config.clone();
        change(&mut other);
        hashes.push(other.hash());
    }
    hashes.sort();
    hashes.dedup();
    assert_eq!(hashes.len(), 10);
    // The hash stands in files: this value may only change together with their format.
    assert_eq!(config.hash(), "8a5846800edc390e744ffc884b154816c6918d7781e5ff91b7c1fac6a8a15c10");
}

#[test]
fn an_absent_resampling_is_8_bit_and_is_not_written() {
    let text = PLAIN.replace(
        "[resize]\nrule = \"none\"",
        "[resize]\nrule = \"exact\"\nheight = 28\nwidth = 28\ninterpolation = \"bicubic\"",
    );
    let absent = ModelConfig::from_toml(&text).unwrap();
    assert_eq!(absent.preparation().resampling, Resampling::EightBit);
    assert!(!absent.to_toml().contains("resampling"));
    let said = |word: &str| {
        ModelConfig::from_toml(&text.replace("\"bicubic\"", &format!("\"bicubic\"\nresampling = \"{word}\"")))
    };
    let same = said("8-bit").unwrap();
    assert_eq!((same.hash(), &same), (absent.hash(), &absent));
    let float = said("float").unwrap();
    assert_eq!(float.preparation().resampling, Resampling::Float);
    assert_ne!(float.hash(), absent.hash());
    assert_eq!(ModelConfig::from_toml(&float.to_toml()).unwrap(), float);
    let error = said("double").unwrap_err().to_string();
    assert!(error.contains("double") && error.contains("8-bit"), "{error}");
}

fn shorter_side(size: usize) -> Resize {
    let (order, resampling) = (PassOrder::default(), Resampling::default());
    Resize::ShorterSide { size, interpolation: Interpolation::Bicubic, order, resampling }
}

#[test]
fn timm_configurations_follow_timms_rules() {
    let text = r#"{"architecture": "efficientnet_lite0", "num_classes": 1000, "pretrained_cfg": {
        "tag": "ra_in1k", "custom_load": false, "input_size": [3, 224, 224], "fixed_input_size": false,
        "interpolation": "bicubic", "crop_pct": 0.875, "crop_mode": "center",
        "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225], "classifier": "classifier"}}"#;
    let config = ModelConfig::from_timm(text).unwrap();
    assert_eq!(config.resize, shorter_side(256));
    assert_eq!(config.picture_shape(), [3, 224, 224]);
    assert_eq!(config.input.std, [0.229, 0.224, 0.225]);
    assert!(config.output.normalise);

    let squash = text.replace("center", "squash").replace("0.875", "1.0");
    let config = ModelConfig::from_timm(&squash).unwrap();
    let wanted = Resize::Exact {
        height: 224,
        width: 224,
        interpolation: Interpolation::Bicubic,
        order: PassOrder::default(),
        resampling: Resampling::default(),
    };
    assert_eq!(config.resize, wanted);

    let sparse = ModelConfig::from_timm(r#"{"input_size": [3, 288, 288], "mean": 0.5}"#).unwrap();
    assert_eq!(sparse.resize, shorter_side(329));
    assert_eq!(sparse.input.mean, [0.5; 3]);

    for (from, to, wanted) in [
        ("center", "border", "crop_mode"),
        ("bicubic", "random", "interpolation"),
        ("0.875", "1.5", "crop_pct"),
        ("224, 224]", "224, 320]", "input_size"),
    ] {
        let error = ModelConfig::from_timm(&text.replace(from, to)).unwrap_err();
        assert!(matches!(&error, ModelConfigFault::Value { field, .. } if *field == wanted), "{to}: {error}");
    }
    let error = ModelConfig::from_timm(r#"{"hidden_size": 768}"#).unwrap_err();
    assert!(matches!(error, ModelConfigFault::NotTimm { missing: "pretrained_cfg" }));
    assert!(matches!(ModelConfig::from_timm("{"), Err(ModelConfigFault::Json(_))));
}

#[test]
fn a_config_is_found_beside_its_model_or_the_error_says_where_it_was_sought() {
    let folder = folder("find");
    let model = folder.join("small.onnx");
    let error = ModelConfig::for_model(&model).unwrap_err();
    let ModelConfigError::Missing { looked_for, .. } = &error else { panic!("{error}") };
    assert_eq!(looked_for.len(), 3);
    assert!(error.to_string().contains("encoder.toml"), "{error}");

    fs::write(folder.join("config.json"), r#"{"input_size": [3, 8, 8], "crop_pct": 1.0}"#).unwrap();
    assert_eq!(ModelConfig::for_model(&model).unwrap().input.height, 8);
    fs::write(folder.join("small.toml"), PLAIN).unwrap();
    assert_eq!(ModelConfig::for_model(&model).unwrap().input.height, 28);
    fs::write(folder.join("encoder.toml"), PLAIN).unwrap();
    assert!(matches!(ModelConfig::for_model(&model), Err(ModelConfigError::Ambiguous { .. })));
    fs::remove_file(folder.join("small.toml")).unwrap();
    assert_eq!(ModelConfig::for_model(&model).unwrap().input.height, 28);

    fs::write(folder.join("encoder.toml"), [0xff, 0xfe]).unwrap();
    assert!(matches!(ModelConfig::for_model(&model), Err(ModelConfigError::Read { .. })));
    fs::remove_dir_all(folder).unwrap();
}
