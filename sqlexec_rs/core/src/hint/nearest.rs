//! Which of many names is nearest to one that is wanted.

/// Bytes of a name beyond which it is not compared.
const MAX_BYTES: usize = 64;

/// The nearest of the names offered so far.
pub(super) struct Nearest {
    wanted: Vec<u8>,
    best: Option<((u32, u32), usize)>,
}

impl Nearest {
    /// Starts without an offer.
    pub(super) fn new(wanted: &str) -> Self {
        Self { wanted: wanted.to_ascii_lowercase().into_bytes(), best: None }
    }

    /// Offers a name: its distance counts first, its rank breaks near-ties (a rank is worth half an edit).
    pub(super) fn offer(&mut self, name: &str, rank: u32, number: usize) {
        let Some(distance) = distance(&self.wanted, name) else { return };
        let key = (2 * distance + rank, rank);
        if self.best.is_none_or(|(best, _)| key < best) {
            self.best = Some((key, number));
        }
    }

    /// Returns the number of the nearest name, if any was near.
    pub(super) fn best(&self) -> Option<usize> {
        self.best.map(|(_, number)| number)
    }
}

/// Edits that are allowed in a name of so many bytes.
fn max_edits(n_bytes: usize) -> u32 {
    (n_bytes as u32 / 3).min(3)
}

/// Returns how far a name is from the wanted one (in lower case), or nothing when it is not near.
///
/// 0 the same but for case; 1 the same but for separators; then the number of edits; last, a name whose words hold all
/// words of the other (`name` and `stadium_name`).
fn distance(wanted: &[u8], name: &str) -> Option<u32> {
    if wanted.is_empty() || wanted.len() > MAX_BYTES || name.is_empty() || name.len() > MAX_BYTES {
        return None;
    }
    let name = name.to_ascii_lowercase().into_bytes();
    if name == wanted {
        return Some(0);
    }
    if without_separators(wanted).eq(without_separators(&name)) {
        return Some(1);
    }
    let limit = max_edits(wanted.len().max(name.len()));
    if wanted.len().abs_diff(name.len()) <= limit as usize {
        let edits = edits(wanted, &name);
        if edits <= limit {
            return Some(edits);
        }
    }
    (holds_words(wanted, &name) || holds_words(&name, wanted)).then_some(limit + 1)
}

fn is_separator(byte: u8) -> bool {
    matches!(byte, b'_' | b' ' | b'-' | b'.')
}

fn without_separators(name: &[u8]) -> impl Iterator<Item = u8> {
    name.iter().copied().filter(|byte| !is_separator(*byte))
}

fn holds_words(longer: &[u8], shorter: &[u8]) -> bool {
    let words = |name| <[u8]>::split(name, |byte| is_separator(*byte)).filter(|word: &&[u8]| word.len() > 1);
    words(shorter).next().is_some() && words(shorter).all(|word| words(longer).any(|other| other == word))
}

/// Counts insertions, deletions, replacements and swaps of neighbours (each byte is moved at most once).
fn edits(a: &[u8], b: &[u8]) -> u32 {
    let mut before: [u32; MAX_BYTES + 1] = [0; MAX_BYTES + 1];
    let mut above: [u32; MAX_BYTES + 1] = std::array::from_fn(|j| j as u32);
    for i in 1..=a.len() {
        let mut row = [i as u32; MAX_BYTES + 1];
        for j in 1..=b.len() {
            let replaced = above[j - 1] + u32::from(a[i - 1] != b[j - 1]);
            row[j] = replaced.min(above[j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                row[j] = row[j].min(before[j - 2] + 1);
            }
        }
        before = above;
        above = row;
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn edits_count_swaps_as_one() {
        for (a, b, n) in
            [("nmae", "name", 1), ("", "abc", 3), ("abc", "", 3), ("kitten", "sitting", 3), ("ca", "abc", 3)]
        {
            assert_eq!(edits(a.as_bytes(), b.as_bytes()), n, "{a} {b}");
        }
    }

    #[test]
    fn near_is_near() {
        let near = |wanted: &str, name: &str| distance(wanted.as_bytes(), name);
        assert_eq!(near("name", "NAME"), Some(0));
        assert_eq!(near("singerid", "Singer_ID"), Some(1));
        assert_eq!(near("nmae", "name"), Some(1));
        assert_eq!(near("id", "is"), None);
        assert_eq!(near("age", "name"), None);
        assert_eq!(near("name", "stadium_name"), Some(4));
        assert_eq!(near("song release year", "year"), Some(4));
        assert_eq!(near(&"x".repeat(65), &"x".repeat(65)), None);
        assert_eq!(near("name", ""), None);
    }

    #[test]
    fn an_exact_name_elsewhere_beats_a_near_one_here() {
        let mut nearest = Nearest::new("capacity");
        assert_eq!(nearest.best(), None);
        nearest.offer("capacite", 1, 0);
        assert_eq!(nearest.best(), Some(0));
        nearest.offer("capacity", 2, 1);
        nearest.offer("CAPACITY", 2, 2);
        assert_eq!(nearest.best(), Some(1));
    }
}
