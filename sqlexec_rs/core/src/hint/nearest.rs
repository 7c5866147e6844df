//! Which of many names is nearest to one that is wanted.

/// Bytes of a name beyond which it is not compared.
const MAX_BYTES: usize = 64;

/// A name ready to be compared: in lower case, with the letters that it holds as a set of bits.
#[derive(Debug)]
pub(super) struct Key {
    bytes: Vec<u8>,
    letters: u64,
}

impl Key {
    /// Makes the key of a name.
    pub(super) fn of(name: &str) -> Self {
        let bytes = name.to_ascii_lowercase().into_bytes();
        let letters = bytes.iter().fold(0, |set, byte| set | 1 << (byte & 63));
        Self { bytes, letters }
    }

    /// Counts letters that the other name lacks, at least (letters may share a bit).
    fn n_lacking(&self, other: &Self) -> u32 {
        (self.letters & !other.letters).count_ones()
    }
}

/// The nearest of the names offered so far.
pub(super) struct Nearest {
    wanted: Key,
    best: Option<((u32, u32), usize)>,
}

impl Nearest {
    /// Starts without an offer.
    pub(super) fn new(wanted: &str) -> Self {
        Self { wanted: Key::of(wanted), best: None }
    }

    /// Offers a name: its distance counts first, its rank breaks near-ties (a rank is worth half an edit).
    pub(super) fn offer(&mut self, name: &Key, rank: u32, number: usize) {
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

/// Returns how far a name is from the wanted one, or nothing when it is not near.
///
/// 0 the same but for case; 1 the same but for separators; then the number of edits; last, a name whose words hold all
/// words of the other (`name` and `stadium_name`). Most names of a schema are ruled out by their letters alone.
fn distance(wanted: &Key, name: &Key) -> Option<u32> {
    let (a, b) = (wanted.bytes.as_slice(), name.bytes.as_slice());
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
    if more.max(fewer) <= limit
        && let Some(edits) = edits_within(limit, a, b)
    {
        return Some(edits);
    }
    ((fewer == 0 && holds_words(a, b)) || (more == 0 && holds_words(b, a))).then_some(limit + 1)
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

/// Counts insertions, deletions, replacements and swaps of neighbours (each byte is moved at most once), unless they are
/// more than `limit`. Only the cells near the diagonal are filled: the others are over the limit.
fn edits_within(limit: u32, a: &[u8], b: &[u8]) -> Option<u32> {
    let reach = limit as usize;
    if a.len().abs_diff(b.len()) > reach {
        return None;
    }
    let over = limit + 1;
    let mut rows = [[over; MAX_BYTES + 2]; 3]; // the rows of i, i - 1 and i - 2, in turn
    for (j, cell) in rows[0].iter_mut().enumerate().take(reach.min(b.len()) + 1) {
        *cell = j as u32;
    }
    for i in 1..=a.len() {
        let (start, end) = (i.saturating_sub(reach).max(1), (i + reach).min(b.len()));
        rows[i % 3][start - 1] = if i <= reach && start == 1 { i as u32 } else { over };
        let mut lowest = rows[i % 3][start - 1];
        for j in start..=end {
            let (above, before) = (&rows[(i + 2) % 3], &rows[(i + 1) % 3]);
            let mut cell = above[j - 1] + u32::from(a[i - 1] != b[j - 1]);
            cell = cell.min(above[j] + 1).min(rows[i % 3][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                cell = cell.min(before[j - 2] + 1);
            }
            rows[i % 3][j] = cell;
            lowest = lowest.min(cell);
        }
        rows[i % 3][end + 1] = over;
        if lowest > limit {
            return None;
        }
    }
    Some(rows[a.len() % 3][b.len()]).filter(|edits| *edits <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts edits over the whole square, as the definition says.
    fn edits_by_definition(a: &[u8], b: &[u8]) -> u32 {
        let mut square = vec![vec![0_u32; b.len() + 1]; a.len() + 1];
        for i in 0..=a.len() {
            for j in 0..=b.len() {
                square[i][j] = match (i, j) {
                    (0, _) => j as u32,
                    (_, 0) => i as u32,
                    _ => {
                        let replaced = square[i - 1][j - 1] + u32::from(a[i - 1] != b[j - 1]);
                        let mut cell = replaced.min(square[i - 1][j] + 1).min(square[i][j - 1] + 1);
                        if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                            cell = cell.min(square[i - 2][j - 2] + 1);
                        }
                        cell
                    }
                };
            }
        }
        square[a.len()][b.len()]
    }

    #[test]
    fn edits_are_counted_up_to_the_limit() {
        assert_eq!(edits_by_definition(b"nmae", b"name"), 1);
        assert_eq!(edits_by_definition(b"kitten", b"sitting"), 3);
        let letters = *b"abc";
        let words: Vec<Vec<u8>> = (0..=5_u32)
            .flat_map(|n| {
                (0..3_usize.pow(n)).map(move |code| (0..n).map(|i| letters[code / 3_usize.pow(i) % 3]).collect())
            })
            .collect();
        for (i, a) in words.iter().enumerate().filter(|(i, _)| i % 7 == 0) {
            for b in words.iter().skip(i % 5).step_by(5) {
                let exact = edits_by_definition(a, b);
                for limit in 0..=3 {
                    assert_eq!(edits_within(limit, a, b), (exact <= limit).then_some(exact), "{a:?} {b:?} {limit}");
                }
            }
        }
        let (long, other) = (vec![b'x'; MAX_BYTES], vec![b'y'; MAX_BYTES]);
        assert_eq!((edits_within(3, &long, &long), edits_within(3, &long, &other)), (Some(0), None));
    }

    #[test]
    fn near_is_near() {
        let near = |wanted: &str, name: &str| distance(&Key::of(wanted), &Key::of(name));
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
        nearest.offer(&Key::of("capacite"), 1, 0);
        assert_eq!(nearest.best(), Some(0));
        nearest.offer(&Key::of("capacity"), 2, 1);
        nearest.offer(&Key::of("CAPACITY"), 2, 2);
        assert_eq!(nearest.best(), Some(1));
    }
}
