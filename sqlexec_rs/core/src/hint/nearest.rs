//! Finds the name nearest to a wanted one.

use strsim::osa_distance;

/// Maximum bytes of a name that is compared.
const MAX_BYTES: usize = 64;

/// Separators between the words of a name.
const SEPARATORS: [char; 4] = ['_', ' ', '-', '.'];

/// A name prepared for comparison: in lower case, with its letters as a bit set.
#[derive(Debug)]
pub(super) struct NameKey {
    name: String,
    letters: u64,
}

impl NameKey {
    /// Creates the key of a name.
    pub(super) fn of(name: &str) -> Self {
        let name = name.to_ascii_lowercase();
        let letters = name.chars().fold(0, |set, letter| set | 1 << (u32::from(letter) & 63));
        Self { name, letters }
    }

    /// Counts letters that the other name lacks; a lower bound, because letters may share a bit.
    fn n_lacking(&self, other: &Self) -> u32 {
        (self.letters & !other.letters).count_ones()
    }
}

/// The nearest of the names offered so far.
pub(super) struct NearestName {
    wanted: NameKey,
    best: Option<((u32, u32), usize)>,
}

impl NearestName {
    /// Starts without names.
    pub(super) fn new(wanted: &str) -> Self {
        Self { wanted: NameKey::of(wanted), best: None }
    }

    /// Offers a name. Its distance counts first; its rank, worth half an edit, breaks near-ties.
    pub(super) fn offer(&mut self, name: &NameKey, rank: u32, number: usize) {
        let Some(distance) = distance(&self.wanted, name) else { return };
        let key = (2 * distance + rank, rank);
        if self.best.is_none_or(|(best, _)| key < best) {
            self.best = Some((key, number));
        }
    }

    /// Returns the number of the nearest name, if any is near enough.
    pub(super) fn best(&self) -> Option<usize> {
        self.best.map(|(_, number)| number)
    }
}

/// Returns the number of edits allowed for a name of `n_bytes` bytes.
fn max_edits(n_bytes: usize) -> u32 {
    (n_bytes as u32 / 3).min(3)
}

/// Returns the distance of a name from the wanted one; `None` if it is not near.
///
/// 0 for names that differ only in case; 1 only in separators; then the number of edits; the maximum for a name whose
/// words include all words of the other (`name` and `stadium_name`). Most names of a schema are excluded by their
/// letters alone.
fn distance(wanted: &NameKey, name: &NameKey) -> Option<u32> {
    let (a, b) = (wanted.name.as_str(), name.name.as_str());
    if a.is_empty() || a.len() > MAX_BYTES || b.is_empty() || b.len() > MAX_BYTES {
        return None;
    }
    if a == b {
        return Some(0);
    }
    if without_separators(a).eq(without_separators(b)) {
        return Some(1);
    }
    let limit = max_edits(a.len().max(b.len()));
    let (more, fewer) = (wanted.n_lacking(name), name.n_lacking(wanted));
    if more.max(fewer) <= limit {
        // Insertions, deletions, replacements and transpositions; each letter is moved at most once.
        let edits = osa_distance(a, b) as u32;
        if edits <= limit {
            return Some(edits);
        }
    }
    ((fewer == 0 && holds_words(a, b)) || (more == 0 && holds_words(b, a))).then_some(limit + 1)
}

fn without_separators(name: &str) -> impl Iterator<Item = char> {
    name.chars().filter(|letter| !SEPARATORS.contains(letter))
}

fn holds_words<'a>(longer: &'a str, shorter: &'a str) -> bool {
    let words_of = |name: &'a str| name.split(SEPARATORS).filter(|word| word.len() > 1);
    words_of(shorter).next().is_some() && words_of(shorter).all(|word| words_of(longer).any(|other| other == word))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_of_near_names() {
        let near = |wanted: &str, name: &str| distance(&NameKey::of(wanted), &NameKey::of(name));
        assert_eq!(near("name", "NAME"), Some(0));
        assert_eq!(near("singerid", "Singer_ID"), Some(1));
        assert_eq!(near("nmae", "name"), Some(1));
        assert_eq!(
            (near("straße", "strasse"), near("café", "cafe"), near("größe", "grösze")),
            (Some(2), Some(1), Some(2))
        );
        assert_eq!(near("kitten", "sitting"), None, "three edits in a name of seven letters");
        assert_eq!(near("id", "is"), None);
        assert_eq!(near("age", "name"), None);
        assert_eq!(near("name", "stadium_name"), Some(4));
        assert_eq!(near("song release year", "year"), Some(4));
        assert_eq!(near(&"x".repeat(65), &"x".repeat(65)), None);
        assert_eq!(near("name", ""), None);
    }

    #[test]
    fn exact_name_beats_a_near_name_of_better_rank() {
        let mut nearest = NearestName::new("capacity");
        assert_eq!(nearest.best(), None);
        nearest.offer(&NameKey::of("capacite"), 1, 0);
        assert_eq!(nearest.best(), Some(0));
        nearest.offer(&NameKey::of("capacity"), 2, 1);
        nearest.offer(&NameKey::of("CAPACITY"), 2, 2);
        assert_eq!(nearest.best(), Some(1));
    }
}
