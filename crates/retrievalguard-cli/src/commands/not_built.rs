//! What a plain build leaves out, and which command brings it.

/// Something was asked for that needs the training crate, which this build does not have.
#[derive(Debug)]
pub(crate) struct NotBuilt(pub(crate) &'static str);

impl std::fmt::Display for NotBuilt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            formatter,
            "{} is not in this build, wanted one with the feature `train`: run the same command with \
             `cargo run --release --features train --`",
            self.0
        )
    }
}

impl std::error::Error for NotBuilt {}

/// The arguments of a command that is not in this build: any.
#[cfg(not(feature = "train"))]
#[derive(clap::Args, Debug)]
#[command(disable_help_flag = true)]
pub(crate) struct AnyArgs {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, hide = true)]
    _arguments: Vec<std::ffi::OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_build_leaves_out_is_named_with_the_command_that_brings_it() {
        let told = NotBuilt("`retrievalguard train`").to_string();
        assert!(told.starts_with("`retrievalguard train` is not in this build"), "{told}");
        assert!(told.ends_with("`cargo run --release --features train --`"), "{told}");
    }
}
