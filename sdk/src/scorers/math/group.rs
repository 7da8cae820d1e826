//! Brackets with several values in them: points, intervals, sets, matrices.

use super::Reason;
use super::parse::{Answer, NOT_UNDERSTOOD, Parsed, Parser};
use super::token::Token;

impl Parser {
    /// A matrix, a set, or brackets with a comma in them. Brackets around one value are the value's.
    pub(super) fn group(&mut self) -> Parsed<Option<Answer>> {
        let start = (self.at, self.operations);
        if self.command("begin") {
            return self.matrix().map(Some);
        }
        let open = match self.peek() {
            Some(Token::Symbol(c @ ('(' | '[' | '{'))) => *c,
            Some(Token::Command(name)) if name == "lbrace" => 'l',
            _ => return Ok(None),
        };
        self.at += 1;
        let inside = self.deeper(|parser| {
            let mut items = Vec::new();
            loop {
                items.push(parser.union()?);
                if !parser.separator() {
                    return Ok(items);
                }
            }
        });
        let close = match self.peek() {
            Some(Token::Symbol(c @ (')' | ']' | '}'))) => *c,
            Some(Token::Command(name)) if name == "rbrace" => 'r',
            _ => ' ',
        };
        match inside {
            Err(limit @ (Reason::TooDeep | Reason::TooLarge)) => Err(limit),
            // `\{1, 2\}`, and `{1, 2}` of whom the backslashes were too much.
            Ok(items) if matches!((open, close), ('l', 'r')) || (items.len() > 1 && (open, close) == ('{', '}')) => {
                self.at += 1;
                Ok(Some(Answer::Set(items)))
            }
            Ok(items) if "([".contains(open) && ")]".contains(close) && items.len() > 1 => {
                self.at += 1;
                Ok(Some(Answer::Group(open, close, items)))
            }
            // `(1 + 2)·3`, or nothing we know: read as a value.
            _ => {
                (self.at, self.operations) = start;
                Ok(None)
            }
        }
    }

    fn matrix(&mut self) -> Parsed<Answer> {
        let name = self.name_in_braces()?;
        if !name.ends_with("matrix") {
            return Err(NOT_UNDERSTOOD);
        }
        let mut rows = vec![Vec::new()];
        loop {
            let value = self.sum()?;
            rows.last_mut().ok_or(NOT_UNDERSTOOD)?.push(value);
            if self.symbol('&') {
                continue;
            }
            let next_row = self.command("\\");
            if self.command("end") {
                self.name_in_braces()?;
                return Ok(Answer::Matrix(rows));
            }
            if !next_row {
                return Err(NOT_UNDERSTOOD);
            }
            rows.push(Vec::new());
        }
    }

    fn name_in_braces(&mut self) -> Parsed<String> {
        if !self.symbol('{') {
            return Err(NOT_UNDERSTOOD);
        }
        let mut name = String::new();
        while !self.symbol('}') {
            match self.peek() {
                Some(Token::Letter(c)) => name.push(*c),
                Some(Token::Text(text)) => name.push_str(text),
                _ => return Err(NOT_UNDERSTOOD),
            }
            self.at += 1;
        }
        Ok(name)
    }
}
