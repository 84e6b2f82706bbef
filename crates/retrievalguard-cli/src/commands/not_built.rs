//! What a plain build leaves out, and which command brings it.

/// Something was asked for that this build does not have.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NotBuilt {
    what: &'static str,
    feature: &'static str,
}

impl NotBuilt {
    /// `what` needs the training crate.
    pub(crate) fn train(what: &'static str) -> Self {
        Self { what, feature: "train" }
    }
}

impl std::fmt::Display for NotBuilt {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { what, feature } = self;
        write!(
            formatter,
            "{what} is not in this build, wanted one with the feature `{feature}`: run the same command with \
             `cargo run --release --features {feature} --`"
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
        let told = NotBuilt::train("`retrievalguard train`").to_string();
        assert!(told.starts_with("`retrievalguard train` is not in this build"), "{told}");
        assert!(told.ends_with("`cargo run --release --features train --`"), "{told}");
    }
}
