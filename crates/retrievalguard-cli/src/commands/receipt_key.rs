//! `retrievalguard receipt-key`: a key that signs receipts.

use std::io::Write;
use std::path::PathBuf;

use retrievalguard_encoder::receipt::ReceiptKey;
use retrievalguard_server::random_bytes;

use crate::progress::tell;

#[derive(clap::Args, Debug)]
#[command(
    args_override_self = true,
    after_help = "Example: retrievalguard receipt-key receipts.key, then give auditors receipts.key.pub"
)]
pub(crate) struct ReceiptKeyArgs {
    /// New file for the secret key; the public key goes to the same name with .pub
    file: PathBuf,
}

pub(super) fn run(arguments: &ReceiptKeyArgs, out: &mut dyn Write) -> anyhow::Result<()> {
    let key = ReceiptKey::from_bytes(random_bytes()?);
    let public = key.write(&arguments.file)?;
    tell(format_args!(
        "{} signs receipts: keep it secret; {} is for auditors",
        arguments.file.display(),
        public.display()
    ));
    writeln!(out, "{}", key.public())?;
    Ok(())
}
