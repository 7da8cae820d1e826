//! Stop texts over a stream of tokens.

use super::IncrementalDecoder;

/// Finds stop texts in a stream of text and holds back what may become one.
///
/// The stop that *ends* first wins (of those, the one that begins first), so the outcome does not
/// depend on how the text was cut into pieces.
#[derive(Clone, Debug)]
pub struct StopMatcher {
    stops: Vec<String>,
    held: String,
    matched: Option<usize>,
}

impl StopMatcher {
    /// Watches for `stops`; empty ones are ignored.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), matched: None }
    }

    /// Adds text; returns what is certainly before any stop. After a match it returns nothing more.
    pub fn push(&mut self, text: &str) -> String {
        if self.matched.is_some() {
            return String::new();
        }
        if self.stops.is_empty() {
            return text.to_owned();
        }
        let seen = self.held.len();
        self.held.push_str(text);
        if let Some((index, start)) = self.first_match(seen) {
            self.matched = Some(index);
            self.held.truncate(start);
            return std::mem::take(&mut self.held);
        }
        let keep = self.possible_prefix();
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// Ends the text; returns what was held back.
    pub fn finish(&mut self) -> String {
        std::mem::take(&mut self.held)
    }

    /// The stop that was found.
    pub fn matched(&self) -> Option<&str> {
        self.matched.map(|index| self.stops[index].as_str())
    }

    /// Which stop ends first, after `seen` bytes that hold no whole one; and where it begins.
    fn first_match(&self, seen: usize) -> Option<(usize, usize)> {
        let found = self.stops.iter().enumerate().filter_map(|(index, stop)| {
            let mut from = (seen + 1).saturating_sub(stop.len());
            while !self.held.is_char_boundary(from) {
                from -= 1;
            }
            let start = from + self.held[from..].find(stop.as_str())?;
            Some((start + stop.len(), start, index))
        });
        found.min().map(|(_, start, index)| (index, start))
    }

    /// Bytes at the end of the held text that begin some stop.
    fn possible_prefix(&self) -> usize {
        let longest = |stop: &String| {
            let ends = stop.char_indices().map(|(at, _)| at).skip(1);
            ends.filter(|&end| self.held.ends_with(&stop[..end])).max().unwrap_or(0)
        };
        self.stops.iter().map(longest).max().unwrap_or(0)
    }
}

/// Watches a response for stop texts, token by token: for the engine.
#[derive(Clone, Debug)]
pub struct StopWatcher {
    decoder: IncrementalDecoder,
    matcher: StopMatcher,
}

impl StopWatcher {
    /// Watches what `decoder` decodes for `stops`.
    pub fn new(decoder: IncrementalDecoder, stops: &[String]) -> Self {
        Self { decoder, matcher: StopMatcher::new(stops) }
    }

    /// Adds a token; true once a stop text is complete.
    pub fn push(&mut self, token: i64) -> bool {
        self.push_text(token);
        self.matcher.matched().is_some()
    }

    /// Adds a token; returns the text that is certainly before any stop.
    pub fn push_text(&mut self, token: i64) -> String {
        let text = self.decoder.push(token);
        self.matcher.push(&text)
    }

    /// Ends the response; returns the text that was held back.
    pub fn finish(&mut self) -> String {
        let text = self.decoder.finish();
        let mut out = self.matcher.push(&text);
        if self.matcher.matched().is_none() {
            out.push_str(&self.matcher.finish());
        }
        out
    }

    /// The stop text that was found.
    pub fn matched(&self) -> Option<&str> {
        self.matcher.matched()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, Option<String>) {
        let stops: Vec<String> = stops.iter().map(|&stop| stop.to_owned()).collect();
        let mut matcher = StopMatcher::new(&stops);
        let mut out: Vec<String> = pieces.iter().map(|piece| matcher.push(piece)).collect();
        out.push(matcher.finish());
        (out, matcher.matched().map(str::to_owned))
    }

    #[test]
    fn a_stop_that_straddles_pieces_is_found_and_removed() {
        assert_eq!(
            run(&["###"], &["a#", "#", "#b"]),
            (vec!["a".into(), "".into(), "".into(), "".into()], Some("###".into()))
        );
        assert_eq!(run(&["###"], &["a##", "b"]), (vec!["a".into(), "##b".into(), "".into()], None));
        assert_eq!(run(&["ab"], &["aa", "a"]), (vec!["a".into(), "a".into(), "a".into()], None));
        assert_eq!(run(&["好吗"], &["你好", "吗?"]), (vec!["你".into(), "".into(), "".into()], Some("好吗".into())));
        assert_eq!(run(&["", "x"], &["ax", "b"]), (vec!["a".into(), "".into(), "".into()], Some("x".into())));
        assert_eq!(run(&[], &["a", "b"]), (vec!["a".into(), "b".into(), "".into()], None));
    }

    #[test]
    fn the_outcome_does_not_depend_on_the_pieces() {
        let text = "xabcdabé好abba";
        let stops = ["abcd", "bc", "é好a", "bba"];
        let whole = run(&stops, &[text]);
        let chars: Vec<String> = text.chars().map(String::from).collect();
        let chars: Vec<&str> = chars.iter().map(String::as_str).collect();
        let split = run(&stops, &chars);
        assert_eq!((whole.0.concat(), whole.1), (split.0.concat(), split.1));
    }
}
