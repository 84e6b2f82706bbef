//! The lines of a journal: what is in them, and which of them are complete.

use std::path::Path;

use serde_json::Value;

use super::{Contents, Differences, JournalError};
use crate::storage::digest::{Digest, canonical_json};

const TITLE: &str = "retrievalguard journal ";
const VERSION: &str = "1";
const CHECKSUM_DIGITS: usize = 16;
const HEADER_LINES: usize = 3;

/// The three lines at the beginning of a journal, as they are written.
pub(super) fn header(run_key: Digest, description: &Value) -> String {
    let description = canonical_json(description);
    let checksum = checksum(run_key, "description", description.as_bytes());
    format!("{TITLE}{VERSION}\n{run_key}\n{checksum} {description}\n")
}

fn checksum(run_key: Digest, number: &str, text: &[u8]) -> String {
    let mut bytes = Vec::with_capacity(64 + text.len());
    bytes.extend_from_slice(run_key.bytes());
    bytes.extend_from_slice(number.as_bytes());
    bytes.push(b' ');
    bytes.extend_from_slice(text);
    format!("{:.*}", CHECKSUM_DIGITS, Digest::of_bytes(&bytes))
}

/// The records that reached the disk together: a power cut may leave the later ones of them without the earlier.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Group {
    pub(super) first: u64,
    pub(super) last: u64,
}

pub(super) fn record_line(
    run_key: Digest,
    number: u64,
    Group { first, last }: Group,
    record: &[u8],
) -> Vec<u8> {
    let number = if first == last { number.to_string() } else { format!("{number}/{first}-{last}") };
    let checksum = checksum(run_key, &number, record);
    let mut line = Vec::with_capacity(record.len() + 40);
    line.extend_from_slice(format!("{number} {checksum} ").as_bytes());
    line.extend_from_slice(record);
    line.push(b'\n');
    line
}

/// The line at `start` without its line break, and where the next one begins.
fn line_at(bytes: &[u8], start: usize) -> Option<(&[u8], usize)> {
    let length = bytes[start..].iter().position(|&byte| byte == b'\n')?;
    Some((&bytes[start..start + length], start + length + 1))
}

/// Splits at the first space.
fn word(line: &[u8]) -> Option<(&str, &[u8])> {
    let space = line.iter().position(|&byte| byte == b' ')?;
    Some((str::from_utf8(&line[..space]).ok()?, &line[space + 1..]))
}

/// The three lines at the beginning of a journal.
struct Header {
    run_key: Digest,
    description: Value,
    /// Where the records begin.
    end: usize,
}

/// Reads the three lines of the header.
fn read_header(bytes: &[u8], path: &Path) -> Result<Header, JournalError> {
    let damaged =
        |offset: usize, what| JournalError::Damaged { path: path.to_owned(), offset: offset as u64, what };
    let shown = &bytes[..bytes.len().min(40)];
    let foreign = || JournalError::NotAJournal {
        path: path.to_owned(),
        found: String::from_utf8_lossy(shown.split(|&byte| byte == b'\n').next().unwrap_or_default())
            .into_owned(),
    };
    let version = bytes.strip_prefix(TITLE.as_bytes()).ok_or_else(foreign)?;
    let (version, _) = line_at(version, 0).ok_or_else(foreign)?;
    if version != VERSION.as_bytes() {
        let found = String::from_utf8_lossy(&version[..version.len().min(20)]).into_owned();
        return Err(JournalError::Version { path: path.to_owned(), found });
    }
    let key_start = TITLE.len() + VERSION.len() + 1;
    let wanted = "wanted the key of the run, 64 hexadecimal digits";
    let (key, description_start) = line_at(bytes, key_start).ok_or_else(|| damaged(key_start, wanted))?;
    let run_key: Digest = str::from_utf8(key)
        .ok()
        .and_then(|text| text.parse().ok().filter(|digest: &Digest| digest.to_string() == text))
        .ok_or_else(|| damaged(key_start, wanted))?;
    let wanted = "wanted a checksum and the description of the run";
    let unreadable = || damaged(description_start, wanted);
    let (line, end) = line_at(bytes, description_start).ok_or_else(unreadable)?;
    let (sum, text) = word(line).ok_or_else(unreadable)?;
    if sum != checksum(run_key, "description", text) {
        return Err(unreadable());
    }
    let description = serde_json::from_slice(text).map_err(|_| unreadable())?;
    Ok(Header { run_key, description, end })
}

/// Checks that the header is that of this run; returns where the records begin.
pub(super) fn check_header(
    bytes: &[u8],
    path: &Path,
    run_key: Digest,
    description: &Value,
) -> Result<usize, JournalError> {
    let found = read_header(bytes, path)?;
    if found.run_key != run_key {
        let differences = Differences::between(&found.description, description);
        return Err(JournalError::OtherRun { path: path.to_owned(), differences });
    }
    Ok(found.end)
}

/// Whole records of whichever run; `None` if the header was never finished.
pub(super) fn contents(bytes: &[u8], path: &Path) -> Result<Option<Contents>, JournalError> {
    let title = format!("{TITLE}{VERSION}\n");
    let common = bytes.len().min(title.len());
    let whole = bytes.iter().filter(|&&byte| byte == b'\n').count() >= HEADER_LINES;
    if !whole && bytes[..common] == title.as_bytes()[..common] {
        return Ok(None);
    }
    let Header { run_key, description, end } = read_header(bytes, path)?;
    let (records, length) = replay(bytes, end, path, run_key)?;
    let unfinished_bytes = (bytes.len() - length) as u64;
    Ok(Some(Contents { run_key, description, records, unfinished_bytes }))
}

/// The records from `start` on, and where the last whole one ends.
pub(super) fn replay(
    bytes: &[u8],
    start: usize,
    path: &Path,
    run_key: Digest,
) -> Result<(Vec<Vec<u8>>, usize), JournalError> {
    let mut records = Vec::new();
    let mut offset = start;
    while let Some((line, next)) = line_at(bytes, offset) {
        match record_of(line, run_key) {
            Some((number, _, record)) if number == records.len() as u64 => records.push(record.to_vec()),
            Some(_) | None => break,
        }
        offset = next;
    }
    let rest = &bytes[offset..];
    // Records that were being written when the process stopped have no end; a power cut may also have kept some of their
    // blocks from the disk, which then read as zeros. Anything else was whole once.
    let unfinished = rest.last() != Some(&b'\n') || rest.contains(&0);
    let missing = records.len() as u64;
    let mut later = rest.split(|&byte| byte == b'\n').skip(1).filter_map(|line| record_of(line, run_key));
    // What reached the disk later than the missing record says that the missing one had been there.
    let followed = later.any(|(_, group, _)| !(group.first..=group.last).contains(&missing));
    if !rest.is_empty() && (!unfinished || followed) {
        let what = "wanted a record with its number and checksum";
        return Err(JournalError::Damaged { path: path.to_owned(), offset: offset as u64, what });
    }
    Ok((records, offset))
}

/// Number, group and text of the record in a line, if the line is whole.
fn record_of(line: &[u8], run_key: Digest) -> Option<(u64, Group, &[u8])> {
    let (numbers, rest) = word(line)?;
    let (sum, record) = word(rest)?;
    let (number, group) = match numbers.split_once('/') {
        None => {
            let number = numbers.parse().ok()?;
            (number, Group { first: number, last: number })
        }
        Some((number, group)) => {
            let (first, last) = group.split_once('-')?;
            (number.parse().ok()?, Group { first: first.parse().ok()?, last: last.parse().ok()? })
        }
    };
    (sum == checksum(run_key, numbers, record)).then_some((number, group, record))
}
