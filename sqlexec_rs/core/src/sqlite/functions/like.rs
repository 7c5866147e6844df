//! LIKE and GLOB.
//!
//! SQLite's own functions take time proportional to pattern times text in one call, without checking any bound. These
//! match the same texts, reading characters like SQLite, and check the bounds. SQLite uses an index for a pattern
//! with a fixed prefix only with its own LIKE: see `sandbox`.

use super::utf8;
use super::work::{RunStopped, WorkMeter};

/// The special characters of a pattern; 0 for none, because no text contains it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wildcards {
    any_run: u32,
    any_char: u32,
    /// Starts a set of characters, as in `[a-z]`.
    set: u32,
    escape: u32,
    ignores_case: bool,
}

pub(super) const LIKE: Wildcards =
    Wildcards { any_run: b'%' as u32, any_char: b'_' as u32, set: 0, escape: 0, ignores_case: true };
pub(super) const GLOB: Wildcards =
    Wildcards { any_run: b'*' as u32, any_char: b'?' as u32, set: b'[' as u32, escape: 0, ignores_case: false };

impl Wildcards {
    /// Returns LIKE's wildcards with an escape character. A wildcard equal to the escape loses its meaning.
    pub(super) fn with_escape(self, escape: u32) -> Self {
        let unless_escape = |wildcard| if wildcard == escape { 0 } else { wildcard };
        Self { any_run: unless_escape(self.any_run), any_char: unless_escape(self.any_char), escape, ..self }
    }

    /// Returns whether a pattern matches a whole text; both end at their first NUL.
    pub(super) fn matches(&self, pattern: &[u8], text: &[u8], work: &mut WorkMeter<'_>) -> Result<bool, RunStopped> {
        let (pattern, text) = (utf8::until_nul(pattern), utf8::until_nul(text));
        let (mut p, mut t) = (0, 0);
        // The state for retrying after a mismatch: after the last `any_run`, which then takes one more character.
        // Earlier ones need no retry, because the last could match whatever they would leave.
        let mut retry: Option<(usize, usize)> = None;
        loop {
            work.spend(1)?;
            match self.step(pattern, p, text, t) {
                Step::Match(next_p, next_t) => (p, t) = (next_p, next_t),
                Step::Any(next_p) => {
                    let Some((after_any, from)) = self.skip_ones(pattern, next_p, text, t) else { return Ok(false) };
                    if after_any == pattern.len() {
                        return Ok(true);
                    }
                    let Some(next_start_at) = self.next_start(pattern, after_any, text, from, work)? else {
                        return Ok(false);
                    };
                    (p, t) = (after_any, next_start_at);
                    retry = Some((after_any, next_start_at));
                }
                Step::End => return Ok(true),
                Step::Mismatch => {
                    let Some((after_any, last_start)) = retry else { return Ok(false) };
                    if last_start >= text.len() {
                        return Ok(false);
                    }
                    let (_, from) = utf8::read(text, last_start);
                    let Some(next_start_at) = self.next_start(pattern, after_any, text, from, work)? else {
                        return Ok(false);
                    };
                    (p, t) = (after_any, next_start_at);
                    retry = Some((after_any, next_start_at));
                }
            }
        }
    }

    /// Matches one element of the pattern.
    #[inline]
    fn step(&self, pattern: &[u8], p: usize, text: &[u8], t: usize) -> Step {
        if p >= pattern.len() {
            return if t >= text.len() { Step::End } else { Step::Mismatch };
        }
        let (mut pattern_char, mut next_p) = utf8::read(pattern, p);
        if pattern_char == self.any_run {
            return Step::Any(next_p);
        }
        let mut is_escaped = false;
        if self.escape != 0 && pattern_char == self.escape {
            if next_p >= pattern.len() {
                return Step::Mismatch;
            }
            (pattern_char, next_p) = utf8::read(pattern, next_p);
            is_escaped = true;
        }
        if t >= text.len() {
            return Step::Mismatch;
        }
        let (text_char, next_t) = utf8::read(text, t);
        if self.set != 0 && pattern_char == self.set {
            return match in_set(pattern, next_p, text_char) {
                Some(after) => Step::Match(after, next_t),
                None => Step::Mismatch,
            };
        }
        if pattern_char == text_char
            || self.is_same_letter(pattern_char, text_char)
            || (pattern_char == self.any_char && !is_escaped)
        {
            Step::Match(next_p, next_t)
        } else {
            Step::Mismatch
        }
    }

    fn is_same_letter(&self, a: u32, b: u32) -> bool {
        let fold = |c: u32| if (65..=90).contains(&c) { c + 32 } else { c };
        self.ignores_case && a < 0x80 && b < 0x80 && fold(a) == fold(b)
    }

    /// Skips what follows an `any_run` in the pattern: further `any_run`s, and `any_char`s, each of which takes a
    /// character of the text.
    fn skip_ones(&self, pattern: &[u8], mut p: usize, text: &[u8], mut t: usize) -> Option<(usize, usize)> {
        while p < pattern.len() {
            let (pattern_char, next_p) = utf8::read(pattern, p);
            if pattern_char == self.any_char {
                if t >= text.len() {
                    return None;
                }
                t = utf8::read(text, t).1;
            } else if pattern_char != self.any_run {
                break;
            }
            p = next_p;
        }
        Some((p, t))
    }

    /// Returns the first position from `from` at which the pattern after an `any_run` may match.
    fn next_start(
        &self,
        pattern: &[u8],
        p: usize,
        text: &[u8],
        from: usize,
        work: &mut WorkMeter<'_>,
    ) -> Result<Option<usize>, RunStopped> {
        let pattern_char = u32::from(pattern[p]);
        if pattern_char >= 0x80 || [self.set, self.escape].contains(&pattern_char) {
            return Ok(Some(from)); // no byte is distinctive: each position is tried
        }
        let byte = pattern[p];
        let rest = &text[from..];
        let offset = if self.ignores_case && byte.is_ascii_alphabetic() {
            memchr::memchr2(byte.to_ascii_lowercase(), byte.to_ascii_uppercase(), rest)
        } else {
            memchr::memchr(byte, rest)
        };
        work.spend(offset.unwrap_or(rest.len()) / 8)?;
        Ok(offset.map(|at| from + at))
    }
}

enum Step {
    Match(usize, usize),
    Any(usize),
    Mismatch,
    End,
}

/// Returns the position after the set of characters that starts at `p`, if `text_char` is in it. An unterminated set
/// contains nothing.
fn in_set(pattern: &[u8], p: usize, text_char: u32) -> Option<usize> {
    const CLOSE: u32 = b']' as u32;
    let read = |p: usize| if p < pattern.len() { utf8::read(pattern, p) } else { (0, p) };
    let mut is_in = false;
    let (mut c, mut p) = read(p);
    let is_inverted = c == u32::from(b'^');
    if is_inverted {
        (c, p) = read(p);
    }
    if c == CLOSE {
        is_in = text_char == CLOSE;
        (c, p) = read(p);
    }
    let mut before = 0;
    while c != 0 && c != CLOSE {
        let ends_range = c == u32::from(b'-') && before > 0 && !matches!(pattern.get(p), None | Some(b']'));
        if ends_range {
            (c, p) = read(p);
            is_in |= before <= text_char && text_char <= c;
            before = 0;
        } else {
            is_in |= text_char == c;
            before = c;
        }
        (c, p) = read(p);
    }
    (c != 0 && is_in != is_inverted).then_some(p)
}
