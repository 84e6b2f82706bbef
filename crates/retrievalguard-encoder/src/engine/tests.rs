use super::*;

fn contract(layout: Layout, channel_order: ChannelOrder) -> Contract {
    let text = r#"
        [input]
        channels = 3
        height = 1
        width = 2
        mean = [0.5, 0.25, 0.0]
        std = [0.5, 0.25, 2.0]
        [resize]
        rule = "none"
        [crop]
        rule = "none"
        [output]
        normalise = true
    "#;
    let mut contract = Contract::from_toml(text).unwrap();
    contract.input.layout = layout;
    contract.input.channel_order = channel_order;
    contract
}

#[test]
fn mean_and_std_belong_to_the_models_channels_in_every_order_and_layout() {
    // Red 0.5 and 1, green 0.25 and 0.5, blue 0 and 4.
    let picture = [0.5, 1.0, 0.25, 0.5, 0.0, 4.0];
    let cases = [
        (Layout::Nchw, ChannelOrder::Rgb, [0.0, 1.0, 0.0, 1.0, 0.0, 2.0], [3, 1, 2]),
        (Layout::Nchw, ChannelOrder::Bgr, [-1.0, 7.0, 0.0, 1.0, 0.25, 0.5], [3, 1, 2]),
        (Layout::Nhwc, ChannelOrder::Rgb, [0.0, 0.0, 0.0, 1.0, 1.0, 2.0], [1, 2, 3]),
        (Layout::Nhwc, ChannelOrder::Bgr, [-1.0, 0.0, 0.25, 7.0, 1.0, 0.5], [1, 2, 3]),
    ];
    for (layout, order, wanted, axes) in cases {
        let preparation = Preparation::new(&contract(layout, order));
        let mut prepared = [0.0; 12];
        preparation.apply(&[picture, picture].concat(), &mut prepared);
        assert_eq!(prepared[..6], wanted, "{layout:?} {order:?}");
        assert_eq!(prepared[6..], wanted, "{layout:?} {order:?}");
        assert_eq!(preparation.axes, axes);
        assert!(!preparation.plain);
    }
}

#[test]
fn a_contract_that_changes_nothing_is_plain() {
    let mut plain = contract(Layout::Nchw, ChannelOrder::Rgb);
    plain.input.mean = vec![0.0; 3];
    plain.input.std = vec![1.0; 3];
    assert!(Preparation::new(&plain).plain);
    plain.input.channel_order = ChannelOrder::Bgr;
    assert!(!Preparation::new(&plain).plain);
    plain.input.channel_order = ChannelOrder::Rgb;
    plain.input.layout = Layout::Nhwc;
    assert!(!Preparation::new(&plain).plain);
}

#[test]
fn normalising_leaves_faults_visible() {
    let mut row = [3.0, 4.0];
    assert!(l2_normalise(&mut row).is_ok());
    assert_eq!(row, [0.6, 0.8]);
    assert!(l2_normalise(&mut [0.0, 0.0]).is_err());
    let mut row = [f32::NAN, 1.0];
    assert!(l2_normalise(&mut row).is_ok());
    assert!(row[0].is_nan());
    let mut row = [f32::MAX, f32::MAX];
    assert!(l2_normalise(&mut row).is_ok());
    assert!((row[0] - std::f32::consts::FRAC_1_SQRT_2).abs() < 1e-7);
}

#[test]
fn words_name_engines_and_providers_both_ways() {
    for engine in [Engine::Onnxruntime, Engine::Rten] {
        assert_eq!(engine.to_string().parse::<Engine>().unwrap(), engine);
    }
    let providers = [Provider::Cpu, Provider::Cuda, Provider::Tensorrt, Provider::Openvino, Provider::Coreml];
    for provider in providers {
        assert_eq!(provider.to_string().parse::<Provider>().unwrap(), provider);
    }
    let error = "gpu".parse::<Provider>().unwrap_err();
    assert_eq!(error.to_string(), "provider is `gpu`, wanted cpu, cuda, tensorrt, openvino or coreml");
}

#[test]
fn the_place_of_the_library_is_no_difference_but_version_engine_and_provider_are() {
    let report = EngineReport {
        engine: Engine::Onnxruntime,
        version: "1.31.1".to_owned(),
        provider: Provider::Cpu,
        library: Some("a/libonnxruntime.so".into()),
    };
    assert_eq!(report.difference(&EngineReport { library: None, ..report.clone() }), None);
    for other in [
        EngineReport { version: "1.30.0".to_owned(), ..report.clone() },
        EngineReport { engine: Engine::Rten, ..report.clone() },
        EngineReport { provider: Provider::Cuda, ..report.clone() },
    ] {
        let difference = report.difference(&other).unwrap();
        assert!(difference.starts_with("onnxruntime 1.31.1 (cpu) here, "), "{difference}");
    }
}
