//! In what two descriptions of a run differ.

use std::fmt;

use serde_json::Value;

use crate::storage::digest::canonical_json;

/// One field in which two descriptions differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Name of the field, with dots between levels.
    pub field: String,
    /// What the journal says, as JSON.
    pub found: Option<String>,
    /// What the run says, as JSON.
    pub wanted: Option<String>,
}

/// Every field in which the description of a journal differs from that of the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Differences(pub Vec<Difference>);

impl Differences {
    /// Compares two descriptions field by field, in alphabetical order.
    pub fn between(found: &Value, wanted: &Value) -> Self {
        let mut differences = Vec::new();
        compare("", Some(found), Some(wanted), &mut differences);
        Self(differences)
    }
}

impl fmt::Display for Differences {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return formatter.write_str("its key differs, though its description is the same");
        }
        for (position, Difference { field, found, wanted }) in self.0.iter().enumerate() {
            if position > 0 {
                formatter.write_str("; ")?;
            }
            let field = if field.is_empty() { "the description" } else { field };
            match (found, wanted) {
                (Some(found), Some(wanted)) => write!(formatter, "{field} is {found}, wanted {wanted}")?,
                (None, Some(wanted)) => write!(formatter, "{field} is missing, wanted {wanted}")?,
                (Some(found), None) => write!(formatter, "{field} is {found}, wanted none")?,
                (None, None) => write!(formatter, "{field} differs")?,
            }
        }
        Ok(())
    }
}

/// Collects the leaves in which two values differ.
fn compare(field: &str, found: Option<&Value>, wanted: Option<&Value>, differences: &mut Vec<Difference>) {
    if found == wanted {
        return;
    }
    if let (Some(Value::Object(left)), Some(Value::Object(right))) = (found, wanted) {
        let mut names: Vec<&String> = left.keys().chain(right.keys()).collect();
        names.sort_unstable();
        names.dedup();
        for name in names {
            let inner = if field.is_empty() { name.clone() } else { format!("{field}.{name}") };
            compare(&inner, left.get(name), right.get(name), differences);
        }
        return;
    }
    differences.push(Difference {
        field: field.to_owned(),
        found: found.map(canonical_json),
        wanted: wanted.map(canonical_json),
    });
}
