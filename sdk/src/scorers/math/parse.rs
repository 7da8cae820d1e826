//! LaTeX and plain text to expressions.

use super::Reason;
use super::number::Rational;
use super::token::{Token, tokens};

/// Levels of brackets, roots and powers that are read.
const DEEPEST: usize = 64;
/// Operations of one answer: a chain of them is as deep as it is long, and is walked by recursion.
const MOST_OPERATIONS: usize = 300;
/// Characters of a name with its index. Indices of indices would double with each level.
const LONGEST_NAME: usize = 400;

/// A number or formula.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Expr {
    Number(Rational),
    /// A letter, a Greek letter, with its index.
    Name(String),
    Infinity,
    Negate(Box<Expr>),
    Add(Box<Expr>, Box<Expr>),
    Multiply(Box<Expr>, Box<Expr>),
    Divide(Box<Expr>, Box<Expr>),
    Power(Box<Expr>, Box<Expr>),
    Root(Box<Expr>, Box<Expr>),
    Call(String, Box<Expr>),
    Factorial(Box<Expr>),
    Binomial(Box<Expr>, Box<Expr>),
    PlusMinus(Box<Expr>, Box<Expr>),
}

/// An answer: a value, or several in brackets.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Answer {
    Value(Expr),
    /// Brackets with commas in them: a point, an interval. The brackets are part of it.
    Group(char, char, Vec<Answer>),
    /// `{a, b}`, or `a, b` without brackets: the order says nothing.
    Set(Vec<Answer>),
    /// `a = b`, `a < b`; `a < b < c` is two.
    Relation(Vec<String>, Vec<Expr>),
    /// `[1, 2) ∪ (3, 4]`.
    Union(Vec<Answer>),
    /// Rows of a matrix.
    Matrix(Vec<Vec<Expr>>),
}

pub(super) type Parsed<T> = Result<T, Reason>;
pub(super) const NOT_UNDERSTOOD: Reason = Reason::NotUnderstood;

/// Reads a cleaned answer.
pub(super) fn parse(text: &str) -> Parsed<Answer> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0, depth: 0, operations: 0 };
    let answer = parser.answer()?;
    if parser.at < parser.tokens.len() { Err(NOT_UNDERSTOOD) } else { Ok(answer) }
}

pub(super) struct Parser {
    tokens: Vec<Token>,
    pub(super) at: usize,
    depth: usize,
    pub(super) operations: usize,
}

const RELATIONS: [(&str, &str); 11] = [
    ("=", "="),
    ("approx", "="),
    ("<", "<"),
    (">", ">"),
    ("le", "<="),
    ("leq", "<="),
    ("ge", ">="),
    ("geq", ">="),
    ("in", "in"),
    ("ne", "!="),
    ("neq", "!="),
];

impl Parser {
    pub(super) fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at)
    }

    pub(super) fn symbol(&mut self, wanted: char) -> bool {
        let found = self.peek() == Some(&Token::Symbol(wanted));
        self.at += usize::from(found);
        found
    }

    pub(super) fn command(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Command(name)) if name == wanted);
        self.at += usize::from(found);
        found
    }

    /// Counts an operation of a chain.
    fn operation(&mut self) -> Parsed<()> {
        self.operations += 1;
        if self.operations > MOST_OPERATIONS { Err(Reason::TooDeep) } else { Ok(()) }
    }

    pub(super) fn deeper<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(Reason::TooDeep);
        }
        let value = read(self);
        self.depth -= 1;
        value
    }

    pub(super) fn separator(&mut self) -> bool {
        let mut found = self.symbol(',') || self.symbol(';');
        if matches!(self.peek(), Some(Token::Text(text)) if ["and", "or"].contains(&text.as_str())) {
            self.at += 1;
            found = true;
        }
        found
    }

    fn answer(&mut self) -> Parsed<Answer> {
        let mut items = vec![self.union()?];
        while self.separator() {
            items.push(self.union()?);
        }
        Ok(if items.len() == 1 { items.remove(0) } else { Answer::Set(items) })
    }

    pub(super) fn union(&mut self) -> Parsed<Answer> {
        let mut parts = vec![self.item()?];
        while self.command("cup") {
            parts.push(self.item()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Answer::Union(parts) })
    }

    fn item(&mut self) -> Parsed<Answer> {
        if self.command("emptyset") || self.command("varnothing") {
            return Ok(Answer::Set(Vec::new()));
        }
        if let Some(group) = self.group()? {
            return Ok(group);
        }
        let first = self.sum()?;
        let (mut relations, mut sides) = (Vec::new(), vec![first]);
        while let Some(relation) = self.relation() {
            relations.push(relation.to_owned());
            if relation == "in" {
                // `x \in [1, 2]` is the interval.
                return self.union();
            }
            if relation == "="
                && let Some(group) = self.group()?
            {
                // `x = (1, 2)` answers the point.
                return Ok(group);
            }
            sides.push(self.sum()?);
        }
        Ok(if relations.is_empty() { Answer::Value(sides.remove(0)) } else { Answer::Relation(relations, sides) })
    }

    fn relation(&mut self) -> Option<&'static str> {
        let name = match self.peek()? {
            Token::Symbol(c) => c.to_string(),
            Token::Command(name) => name.clone(),
            _ => return None,
        };
        let (_, relation) = RELATIONS.iter().find(|(written, _)| *written == name)?;
        self.at += 1;
        // `<=` and `>=` written out.
        if ["<", ">"].contains(relation) && self.symbol('=') {
            return Some(if *relation == "<" { "<=" } else { ">=" });
        }
        Some(relation)
    }

    pub(super) fn sum(&mut self) -> Parsed<Expr> {
        self.deeper(|parser| {
            let negative = parser.symbol('-');
            let both = !negative && parser.command("pm");
            let _ = !negative && parser.symbol('+');
            let mut sum = parser.product()?;
            if negative {
                sum = Expr::Negate(sum.into());
            } else if both {
                sum = Expr::PlusMinus(Expr::Number(Rational::integer(0)).into(), sum.into());
            }
            loop {
                sum = if parser.symbol('+') {
                    Expr::Add(sum.into(), parser.product()?.into())
                } else if parser.symbol('-') {
                    Expr::Add(sum.into(), Expr::Negate(parser.product()?.into()).into())
                } else if parser.command("pm") {
                    Expr::PlusMinus(sum.into(), parser.product()?.into())
                } else {
                    return Ok(sum);
                };
                parser.operation()?;
            }
        })
    }

    fn product(&mut self) -> Parsed<Expr> {
        let mut product = self.signed_power()?;
        loop {
            product = if self.symbol('*') || self.command("cdot") || self.command("times") {
                Expr::Multiply(product.into(), self.signed_power()?.into())
            } else if self.symbol('/') || self.symbol(':') || self.command("div") {
                Expr::Divide(product.into(), self.signed_power()?.into())
            } else if matches!(product, Expr::Number(_)) && self.is_slashed_fraction() {
                // `3 1/2` is three and a half.
                let above = self.factor()?;
                self.at += 1;
                let below = self.factor()?;
                Expr::Add(product.into(), Expr::Divide(above.into(), below.into()).into())
            } else if self.begins_factor() {
                let mixed = matches!(product, Expr::Number(_)) && self.is_plain_fraction();
                let factor = self.power()?;
                // `3\frac{1}{2}` is three and a half.
                if mixed {
                    Expr::Add(product.into(), factor.into())
                } else {
                    Expr::Multiply(product.into(), factor.into())
                }
            } else {
                return Ok(product);
            };
            self.operation()?;
        }
    }

    fn is_plain_fraction(&self) -> bool {
        let after = &self.tokens[self.at..];
        let plain = |token: &Token| matches!(token, Token::Number(digits) if !digits.contains('.'));
        match after {
            [Token::Command(name), Token::Symbol('{'), above, Token::Symbol('}'), Token::Symbol('{'), below, ..] => {
                name == "frac" && plain(above) && plain(below)
            }
            [Token::Command(name), Token::Number(digits), ..] => name == "frac" && digits.len() == 2,
            _ => false,
        }
    }

    /// Two whole numbers with a slash between them.
    fn is_slashed_fraction(&self) -> bool {
        let whole =
            |token: &Token| matches!(token, Token::Number(digits) if digits.bytes().all(|c| c.is_ascii_digit()));
        matches!(&self.tokens[self.at..], [above, Token::Symbol('/'), below, ..] if whole(above) && whole(below))
    }

    /// What may follow without a sign of multiplication. A number may not: `\frac{1}{2}3` is a slip.
    fn begins_factor(&self) -> bool {
        match self.peek() {
            Some(Token::Letter(_)) => true,
            Some(Token::Symbol(c)) => matches!(c, '(' | '{'),
            Some(Token::Command(name)) => {
                !RELATIONS.iter().any(|(relation, _)| relation == name)
                    && !["cup", "pm", "rbrace", "end", "\\", "cdot", "times", "div", "begin"].contains(&name.as_str())
            }
            _ => false,
        }
    }

    fn signed_power(&mut self) -> Parsed<Expr> {
        if self.symbol('-') { Ok(Expr::Negate(self.deeper(Self::signed_power)?.into())) } else { self.power() }
    }

    fn power(&mut self) -> Parsed<Expr> {
        let mut base = self.factor()?;
        while self.symbol('!') {
            self.operation()?;
            base = Expr::Factorial(base.into());
        }
        if !self.symbol('^') {
            return Ok(base);
        }
        let exponent = self.deeper(Self::argument_signed)?;
        Ok(match exponent {
            // Degrees say nothing about the value.
            Expr::Name(name) if name == "circ" => base,
            exponent => Expr::Power(base.into(), exponent.into()),
        })
    }

    fn argument_signed(&mut self) -> Parsed<Expr> {
        if self.symbol('-') {
            return Ok(Expr::Negate(self.argument_signed_once()?.into()));
        }
        self.argument_signed_once()
    }

    /// What follows `^`, which `2^{3^4}` and `2^3^4` nest.
    fn argument_signed_once(&mut self) -> Parsed<Expr> {
        // In a plain text `2^10` means ten.
        let argument = match self.peek().cloned() {
            Some(Token::Number(digits)) => {
                self.at += 1;
                Expr::Number(Rational::decimal(&digits)?)
            }
            _ => self.argument()?,
        };
        if self.symbol('^') {
            let exponent = self.deeper(Self::argument_signed)?;
            return Ok(Expr::Power(argument.into(), exponent.into()));
        }
        Ok(argument)
    }

    /// A braced expression, or the next single thing: `\frac12` is a half.
    fn argument(&mut self) -> Parsed<Expr> {
        if self.symbol('{') {
            let inside = self.sum()?;
            return if self.symbol('}') { Ok(inside) } else { Err(NOT_UNDERSTOOD) };
        }
        if let Some(Token::Number(digits)) = self.peek().cloned()
            && digits.len() > 1
        {
            self.tokens[self.at] = Token::Number(digits[1..].to_owned());
            return Ok(Expr::Number(Rational::decimal(&digits[..1])?));
        }
        self.deeper(Self::factor)
    }

    /// One number, name, bracket or function.
    fn factor(&mut self) -> Parsed<Expr> {
        let token = self.peek().cloned().ok_or(NOT_UNDERSTOOD)?;
        self.at += 1;
        match token {
            Token::Number(digits) if self.is_repeating() => self.repeating(&digits),
            Token::Number(digits) => Ok(self.indexed(Expr::Number(Rational::decimal(&digits)?), &digits)?),
            Token::Letter(c) => {
                let name = c.to_string();
                self.indexed(Expr::Name(name.clone()), &name)
            }
            Token::Text(text) if text.chars().count() == 1 => Ok(Expr::Name(text)),
            Token::Text(_) => Err(NOT_UNDERSTOOD),
            Token::Symbol(open @ ('(' | '[' | '{')) => {
                let inside = self.sum()?;
                let close = match open {
                    '(' => ')',
                    '[' => ']',
                    _ => '}',
                };
                if self.symbol(close) { Ok(inside) } else { Err(NOT_UNDERSTOOD) }
            }
            Token::Symbol('|') => {
                let inside = self.sum()?;
                if self.symbol('|') { Ok(Expr::Call("abs".to_owned(), inside.into())) } else { Err(NOT_UNDERSTOOD) }
            }
            Token::Symbol(_) => Err(NOT_UNDERSTOOD),
            Token::Command(name) => self.named(&name),
        }
    }

    fn is_repeating(&self) -> bool {
        matches!(&self.tokens[self.at..], [Token::Command(name), Token::Symbol('{'), Token::Number(_), Token::Symbol('}'), ..] if name == "overline")
    }

    /// `0.1\overline{6}`: the digits below the line go on for ever.
    fn repeating(&mut self, digits: &str) -> Parsed<Expr> {
        let Some(Token::Number(period)) = self.tokens.get(self.at + 2).cloned() else { return Err(NOT_UNDERSTOOD) };
        self.at += 4;
        let Some((_, fraction)) = digits.split_once('.') else { return Err(NOT_UNDERSTOOD) };
        Rational::repeating(digits, (fraction.len(), &period)).map(Expr::Number)
    }

    /// With its index, which makes another name of it: `x_1`, `1011_2`.
    fn indexed(&mut self, bare: Expr, written: &str) -> Parsed<Expr> {
        if !self.symbol('_') {
            return Ok(bare);
        }
        let index = self.argument()?;
        let name = format!("{written}_{index:?}");
        if name.len() > LONGEST_NAME { Err(Reason::TooDeep) } else { Ok(Expr::Name(name)) }
    }

    fn named(&mut self, name: &str) -> Parsed<Expr> {
        Ok(match name {
            "frac" => {
                let above = self.argument()?;
                Expr::Divide(above.into(), self.argument()?.into())
            }
            "binom" | "dbinom" | "tbinom" => {
                let above = self.argument()?;
                Expr::Binomial(above.into(), self.argument()?.into())
            }
            "sqrt" => {
                let degree = if self.symbol('[') {
                    let degree = self.sum()?;
                    if !self.symbol(']') {
                        return Err(NOT_UNDERSTOOD);
                    }
                    degree
                } else {
                    Expr::Number(Rational::integer(2))
                };
                Expr::Root(self.argument()?.into(), degree.into())
            }
            "infty" => Expr::Infinity,
            "sin" | "cos" | "tan" | "cot" | "sec" | "csc" | "ln" | "log" | "exp" | "arcsin" | "arccos" | "arctan" => {
                let power = if self.symbol('^') { Some(self.argument_signed()?) } else { None };
                let base = if name == "log" && self.symbol('_') { Some(self.argument()?) } else { None };
                let argument = self.deeper(Self::power)?;
                let mut value = Expr::Call(if base.is_some() { "ln" } else { name }.to_owned(), argument.into());
                if let Some(base) = base {
                    value = Expr::Divide(value.into(), Expr::Call("ln".to_owned(), base.into()).into());
                }
                match power {
                    Some(power) => Expr::Power(value.into(), power.into()),
                    None => value,
                }
            }
            "pi" | "theta" | "alpha" | "beta" | "gamma" | "lambda" | "mu" | "sigma" | "omega" | "phi" | "varphi"
            | "circ" => self.indexed(Expr::Name(name.to_owned()), name)?,
            "%" => return Err(NOT_UNDERSTOOD),
            _ => return Err(NOT_UNDERSTOOD),
        })
    }
}
