//! Splitting `<think>…</think>` off a chat answer, while it streams.

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// One piece of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Delta {
    pub(super) reasoning: String,
    pub(super) content: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Part {
    /// Nothing but white space yet: `<think>` may come.
    Start,
    Reasoning,
    /// After `</think>`: line breaks before the answer are dropped.
    Gap,
    Content,
}

/// Sends text to reasoning or content. White space around either part of a thinking answer is
/// dropped; an answer that does not think passes unchanged.
#[derive(Clone, Debug)]
pub(super) struct ReasoningSplitter {
    part: Part,
    held: String,
    /// Some reasoning is out: white space counts from here on.
    begun: bool,
}

impl ReasoningSplitter {
    /// For a model without `<think>`, or a client that wants the raw text.
    pub(super) fn off() -> Self {
        Self { part: Part::Content, held: String::new(), begun: false }
    }

    /// For an answer to `prompt`: where its template already opened `<think>`, the answer begins
    /// inside.
    pub(super) fn after_prompt(prompt: &str) -> Self {
        let part = if prompt.trim_end().ends_with(OPEN) { Part::Reasoning } else { Part::Start };
        Self { part, held: String::new(), begun: false }
    }

    /// Adds text.
    pub(super) fn push(&mut self, text: &str) -> Delta {
        self.held.push_str(text);
        let mut delta = Delta::default();
        loop {
            match self.part {
                Part::Start => {
                    let body = self.held.trim_start();
                    if let Some(rest) = body.strip_prefix(OPEN) {
                        self.held = rest.to_owned();
                        self.part = Part::Reasoning;
                    } else if OPEN.starts_with(body) {
                        return delta;
                    } else {
                        self.part = Part::Content;
                    }
                }
                Part::Reasoning => {
                    if !self.begun {
                        self.held = self.held.trim_start().to_owned();
                        self.begun = !self.held.is_empty();
                    }
                    if let Some(at) = self.held.find(CLOSE) {
                        delta.reasoning.push_str(self.held[..at].trim_end());
                        self.held.drain(..at + CLOSE.len());
                        self.part = Part::Gap;
                    } else {
                        // What may be the close mark, and the white space before it, waits.
                        let mark = (1..CLOSE.len()).rev().find(|&n| self.held.ends_with(&CLOSE[..n])).unwrap_or(0);
                        let keep = self.held[..self.held.len() - mark].trim_end().len();
                        delta.reasoning.push_str(&self.held[..keep]);
                        self.held.drain(..keep);
                        return delta;
                    }
                }
                Part::Gap => {
                    self.held = self.held.trim_start().to_owned();
                    if self.held.is_empty() {
                        return delta;
                    }
                    self.part = Part::Content;
                }
                Part::Content => {
                    delta.content.push_str(&std::mem::take(&mut self.held));
                    return delta;
                }
            }
        }
    }

    /// Ends the answer.
    pub(super) fn finish(&mut self) -> Delta {
        let held = std::mem::take(&mut self.held);
        match self.part {
            Part::Start | Part::Content => Delta { content: held, ..Delta::default() },
            Part::Reasoning => Delta { reasoning: held.trim_end().to_owned(), ..Delta::default() },
            Part::Gap => Delta::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(prompt: &str, text: &str, piece: usize) -> (String, String) {
        let mut splitter = ReasoningSplitter::after_prompt(prompt);
        let chars: Vec<char> = text.chars().collect();
        let (mut reasoning, mut content) = (String::new(), String::new());
        let mut take = |delta: Delta| {
            reasoning.push_str(&delta.reasoning);
            content.push_str(&delta.content);
        };
        for part in chars.chunks(piece) {
            take(splitter.push(&part.iter().collect::<String>()));
        }
        take(splitter.finish());
        (reasoning, content)
    }

    #[test]
    fn every_shape_is_split_alike_in_any_pieces() {
        for (prompt, text, reasoning, content) in [
            ("", "<think>\na b\n</think>\n\nfour", "a b", "four"),
            ("…<think>\n", "a\n\nb\n</think>\n\nfour\n", "a\n\nb", "four\n"),
            ("…<think>\n", "a < b </thin", "a < b </thin", ""),
            ("…<think>\n", "never closed\n", "never closed", ""),
            ("…<think>\n\n</think>\n\n", "four", "", "four"),
            ("", " four <think>", "", " four <think>"),
            ("", "<thin", "", "<thin"),
            ("", "<think></think>", "", ""),
            ("", "<think>a</think>b</think>c", "a", "b</think>c"),
            ("", "  <think>é</think>好", "é", "好"),
        ] {
            for piece in 1..8 {
                let expected = (reasoning.to_owned(), content.to_owned());
                assert_eq!(split(prompt, text, piece), expected, "{text:?} in pieces of {piece}");
            }
        }
        let mut off = ReasoningSplitter::off();
        assert_eq!(off.push("<think>a").content, "<think>a");
    }
}
