//! `--config run.toml`: flags from a file, overridden by flags of the command line.

use std::ffi::OsString;
use std::fs;

use anyhow::{Context, bail};
use toml::{Table, Value};

/// Puts the file's flags right behind the subcommand, where flags given by hand come later and win.
pub(crate) fn expand(mut arguments: Vec<OsString>) -> anyhow::Result<Vec<OsString>> {
    let Some((path, from, count)) = find(&arguments) else { return Ok(arguments) };
    arguments.drain(from..from + count);
    let shown = path.to_string_lossy().into_owned();
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read configuration `{shown}`"))?;
    let table: Table = text.parse().with_context(|| format!("configuration `{shown}` is not TOML"))?;
    let Some(place) = arguments.iter().skip(1).position(|word| !word.to_string_lossy().starts_with('-'))
    else {
        return Ok(arguments);
    };
    let command = arguments[place + 1].to_string_lossy().into_owned();
    let mut flags = Vec::new();
    for (key, value) in &table {
        match value {
            Value::Table(inner) if *key == command => {
                for (key, value) in inner {
                    add(&mut flags, key, value, &shown)?;
                }
            }
            Value::Table(_) => {}
            value => add(&mut flags, key, value, &shown)?,
        }
    }
    arguments.splice(place + 2..place + 2, flags);
    Ok(arguments)
}

/// The file, the place of the flag and how many words it takes.
fn find(arguments: &[OsString]) -> Option<(OsString, usize, usize)> {
    for (place, word) in arguments.iter().enumerate().skip(1) {
        let text = word.to_string_lossy();
        if text == "--config" {
            return arguments.get(place + 1).map(|path| (path.clone(), place, 2));
        }
        if let Some(path) = text.strip_prefix("--config=") {
            return Some((path.into(), place, 1));
        }
    }
    None
}

fn add(flags: &mut Vec<OsString>, key: &str, value: &Value, file: &str) -> anyhow::Result<()> {
    let flag = format!("--{}", key.replace('_', "-"));
    let text = match value {
        Value::Boolean(true) => {
            flags.push(flag.into());
            return Ok(());
        }
        Value::Boolean(false) => return Ok(()),
        Value::String(text) => text.clone(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Array(values) => {
            let words: Option<Vec<String>> = values
                .iter()
                .map(|value| match value {
                    Value::String(text) => Some(text.clone()),
                    Value::Integer(number) => Some(number.to_string()),
                    Value::Float(number) => Some(number.to_string()),
                    Value::Boolean(_) | Value::Datetime(_) | Value::Array(_) | Value::Table(_) => None,
                })
                .collect();
            let Some(words) = words else {
                bail!("`{key}` in configuration `{file}` is a list of {values:?}, wanted strings or numbers")
            };
            words.join(",")
        }
        Value::Datetime(_) | Value::Table(_) => {
            bail!("`{key}` in configuration `{file}` is {value}, wanted a string, a number, true or a list")
        }
    };
    // One word, so that a value that begins with a dash is not taken for a flag.
    flags.push(format!("{flag}={text}").into());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<OsString> {
        text.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn flags_of_the_file_come_before_those_given_by_hand() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.toml");
        fs::write(
            &path,
            "sigma = 0.25\nskip_broken = true\ncertificate = [\"paper\", \"vote\"]\n[query]\ntop-k = 3\n",
        )
        .unwrap();
        let line = format!("retrievalguard certify --config {} pictures --sigma 0.5", path.display());
        let found = expand(words(&line)).unwrap();
        let wanted =
            "retrievalguard certify --certificate=paper,vote --sigma=0.25 --skip-broken pictures --sigma 0.5";
        assert_eq!(found, words(wanted));
        let line = format!("retrievalguard query --config={} a.png", path.display());
        assert!(expand(words(&line)).unwrap().contains(&OsString::from("--top-k=3")));
    }

    #[test]
    fn a_missing_or_broken_file_is_named() {
        let error = expand(words("retrievalguard certify --config nowhere.toml")).unwrap_err();
        assert!(error.to_string().contains("nowhere.toml"), "{error}");
    }
}
