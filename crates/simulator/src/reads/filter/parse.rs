//! From the text of a filter to what it means: pieces first, then recursive descent.

use super::{Field, Filter, Operator, Test, literal};

/// The longest filter, in bytes.
const MAX_LENGTH: usize = 4_096;
/// Parentheses within parentheses.
const MAX_DEPTH: usize = 32;

/// Reads a filter.
pub(super) fn parse(text: &str, timestamps: bool) -> Result<Filter, String> {
    if text.len() > MAX_LENGTH {
        return Err(format!("the filter has {} bytes, more than {MAX_LENGTH}", text.len()));
    }
    let tokens = tokens(text)?;
    let mut parser = Parser { tokens: &tokens, timestamps };
    let filter = parser.any(0)?;
    match parser.next() {
        None => Ok(filter),
        Some(token) => Err(format!("{token} is not expected: expected and, or, or the end of the filter")),
    }
}

/// A piece of a filter.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Token<'a> {
    Open,
    Close,
    Comma,
    Text(String),
    Word(&'a str),
}

impl std::fmt::Display for Token<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Open => f.write_str("\"(\""),
            Self::Close => f.write_str("\")\""),
            Self::Comma => f.write_str("\",\""),
            Self::Text(text) => write!(f, "the text {text:?}"),
            Self::Word(word) => write!(f, "{word:?}"),
        }
    }
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, String> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let (token, after) = match first {
            '(' => (Token::Open, &rest[1..]),
            ')' => (Token::Close, &rest[1..]),
            ',' => (Token::Comma, &rest[1..]),
            '\'' => quoted(&rest[1..])?,
            _ => {
                let end = rest
                    .find(|character: char| {
                        character.is_whitespace() || matches!(character, '(' | ')' | ',' | '\'')
                    })
                    .unwrap_or(rest.len());
                (Token::Word(&rest[..end]), &rest[end..])
            }
        };
        tokens.push(token);
        rest = after.trim_start();
    }
    Ok(tokens)
}

/// Text after its opening quote, and what follows its closing one. Two quotes within are one.
fn quoted(mut rest: &str) -> Result<(Token<'_>, &str), String> {
    let mut text = String::new();
    loop {
        let Some((before, after)) = rest.split_once('\'') else {
            return Err("a text has no closing quote".to_owned());
        };
        text.push_str(before);
        let Some(more) = after.strip_prefix('\'') else {
            return Ok((Token::Text(text), after));
        };
        text.push('\'');
        rest = more;
    }
}

struct Parser<'a> {
    tokens: &'a [Token<'a>],
    timestamps: bool,
}

impl<'a> Parser<'a> {
    fn next(&mut self) -> Option<&'a Token<'a>> {
        let (first, rest) = self.tokens.split_first()?;
        self.tokens = rest;
        Some(first)
    }

    fn take(&mut self, wanted: &Token<'_>) -> bool {
        let found = self.tokens.first() == Some(wanted);
        if found {
            self.tokens = &self.tokens[1..];
        }
        found
    }

    fn expect(&mut self, wanted: &Token<'_>) -> Result<(), String> {
        match self.next() {
            Some(token) if token == wanted => Ok(()),
            Some(token) => Err(format!("{token} is not expected: expected {wanted}")),
            None => Err(format!("the filter ends early: expected {wanted}")),
        }
    }

    fn word(&mut self, wanted: &str) -> Result<&'a str, String> {
        match self.next() {
            Some(Token::Word(word)) => Ok(word),
            Some(token) => Err(format!("{token} is not expected: expected {wanted}")),
            None => Err(format!("the filter ends early: expected {wanted}")),
        }
    }

    fn any(&mut self, depth: usize) -> Result<Filter, String> {
        self.chain("or", Filter::Any, |parser| parser.all(depth))
    }

    fn all(&mut self, depth: usize) -> Result<Filter, String> {
        self.chain("and", Filter::All, |parser| parser.single(depth))
    }

    /// Parts between the same word in one list, so that a long chain is no deep tree.
    fn chain(
        &mut self,
        between: &str,
        join: fn(Vec<Filter>) -> Filter,
        mut part: impl FnMut(&mut Self) -> Result<Filter, String>,
    ) -> Result<Filter, String> {
        let first = part(self)?;
        if self.tokens.first() != Some(&Token::Word(between)) {
            return Ok(first);
        }
        let mut parts = vec![first];
        while self.take(&Token::Word(between)) {
            parts.push(part(self)?);
        }
        Ok(join(parts))
    }

    fn single(&mut self, depth: usize) -> Result<Filter, String> {
        if self.take(&Token::Open) {
            if depth == MAX_DEPTH {
                return Err(format!("parentheses are nested more than {MAX_DEPTH} deep"));
            }
            let inner = self.any(depth + 1)?;
            self.expect(&Token::Close)?;
            return Ok(inner);
        }
        let name = self.word("a field, contains or \"(\"")?;
        if self.take(&Token::Open) {
            return self.function(name);
        }
        let field = Field::from_name(name)?;
        let operator = Operator::from_name(self.word("eq, ge or gt")?)?;
        match self.next() {
            Some(Token::Text(text)) => text_test(field, Test::Compare(operator, text.clone())),
            Some(Token::Word("null")) => Ok(Filter::Never),
            Some(Token::Word(word)) => self.literal(field, operator, word),
            Some(token) => Err(format!("{token} is not expected: expected a value")),
            None => Err("the filter ends early: expected a value".to_owned()),
        }
    }

    /// After the name of a function and its opening parenthesis.
    fn function(&mut self, name: &str) -> Result<Filter, String> {
        if name != "contains" {
            return Err(format!("function {name:?} is not understood: expected contains"));
        }
        let field = Field::from_name(self.word("a field")?)?;
        self.expect(&Token::Comma)?;
        let part = match self.next() {
            Some(Token::Text(text)) => text.clone(),
            Some(token) => return Err(format!("{token} is not expected: expected a text in single quotes")),
            None => return Err("the filter ends early: expected a text in single quotes".to_owned()),
        };
        self.expect(&Token::Close)?;
        text_test(field, Test::Contains(part))
    }

    fn literal(&self, field: Field, operator: Operator, word: &str) -> Result<Filter, String> {
        match field {
            Field::Code => literal::number(word)
                .map(|value| Filter::Code(operator, value))
                .ok_or_else(|| format!("{word:?} is no number, with which companyCode is compared")),
            Field::Updated => {
                literal::moment(word, self.timestamps).map(|value| Filter::Updated(operator, value))
            }
            Field::Name | Field::Identifier => {
                Err(format!("{word:?} is no text in single quotes, with which this field is compared"))
            }
        }
    }
}

fn text_test(field: Field, test: Test) -> Result<Filter, String> {
    match field {
        Field::Name => Ok(Filter::Name(test)),
        Field::Identifier => Ok(Filter::Identifier(test)),
        Field::Code => Err("companyCode is no text: expected a number without quotes".to_owned()),
        Field::Updated => Err("lastUpdate is no text: expected a date without quotes".to_owned()),
    }
}
