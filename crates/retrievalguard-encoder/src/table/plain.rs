//! What the encoder without noise retrieves, over all queries of a table.

use retrievalguard::evaluation::Share;

use super::{ResultRow, ResultTable};

/// What a table without plain answers says in their place.
pub const PLAIN_UNKNOWN: &str = "unknown: index again";

impl ResultRow {
    /// Whether the encoder without noise retrieves the right label, if the table says what it retrieves.
    pub fn plain_right(&self) -> Option<bool> {
        self.plain.as_ref().map(|plain| plain.retrieved_label == self.label)
    }
}

impl ResultTable {
    /// Recall@1 of the encoder without noise, about which nothing is proved; none unless every row says what it retrieves.
    pub fn plain_recall(&self) -> Option<Share> {
        let right: Option<Vec<bool>> = self.rows().iter().map(ResultRow::plain_right).collect();
        let right = right.filter(|right| !right.is_empty())?;
        let count = right.iter().filter(|&&right| right).count();
        Some(Share::new(u32::try_from(count).ok()?, u32::try_from(right.len()).ok()?))
    }
}
