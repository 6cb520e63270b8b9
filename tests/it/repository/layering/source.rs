//! Just enough of Rust's grammar to see which modules and crates a file names.
//!
//! Text → [`Token`]s without comments, strings and lifetimes → paths. A path is followed from `crate`, `self`
//! or `super` through groups; the first name below the crate's root is the module meant.

/// A top-level module named in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) line: usize,
    pub(super) name: String,
}

/// A file as tokens, with its own place in the crate.
pub(super) struct Source {
    tokens: Vec<Token>,
    /// How many modules lie between the crate's root and this file: 1 for `retry.rs` and `avro/mod.rs`.
    depth: usize,
}

#[derive(Debug, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

impl Source {
    /// `stem` is the file's path below `src`, without `.rs`.
    pub(super) fn read(stem: &str, text: &str) -> Self {
        let modules = stem.split('/').filter(|part| !matches!(*part, "mod" | "lib" | "main"));
        Self { tokens: tokenize(text), depth: modules.count() }
    }

    /// Every top-level module of this crate that the file names.
    pub(super) fn modules(&self) -> Vec<Mention> {
        let mut mentions = Vec::new();
        // Braces that are open, and whether each belongs to an inline module.
        let mut open = Vec::new();
        for index in 0..self.tokens.len() {
            match self.text(index) {
                "{" => open.push(index >= 2 && self.text(index - 2) == "mod"),
                "}" => drop(open.pop()),
                "crate" | "super" | "self" | "tributary" if !self.is_continued(index) => {
                    let inline = open.iter().filter(|is_module| **is_module).count();
                    self.follow(index, None, self.depth + inline, &mut mentions);
                }
                _ => {}
            }
        }
        mentions
    }

    /// Lines that name `package`, in whatever way.
    pub(super) fn lines_naming(&self, package: &str) -> impl Iterator<Item = usize> {
        self.tokens.iter().filter(move |token| token.text == package).map(|token| token.line)
    }

    /// Lines that name one of `items` of `package`, directly or in a group.
    pub(super) fn lines_naming_any_of(&self, package: &str, items: &[&str]) -> Vec<usize> {
        let mut lines = Vec::new();
        for index in 0..self.tokens.len() {
            if self.text(index) != package || self.text(index + 1) != "::" {
                continue;
            }
            let end = if self.text(index + 2) == "{" { self.group_end(index + 2) } else { index + 3 };
            let named = (index + 2..end).filter(|index| items.contains(&self.text(*index)));
            lines.extend(named.map(|index| self.tokens[index].line));
        }
        lines
    }

    /// Follows the path that goes on at `index`. `place` is where it has come to, in modules below the root,
    /// `None` at its beginning; `here` is the module it is written in.
    fn follow(&self, index: usize, place: Option<usize>, here: usize, mentions: &mut Vec<Mention>) {
        let next = match (self.text(index), place) {
            ("{", Some(_)) => {
                for start in self.group_items(index) {
                    self.follow(start, place, here, mentions);
                }
                return;
            }
            ("crate" | "tributary", None) => 0,
            ("self", None) => here,
            ("super", None) => here.saturating_sub(1),
            ("self", Some(place)) => place,
            ("super", Some(place)) => place.saturating_sub(1),
            (name, Some(0)) if name == "*" || name.starts_with(|letter: char| letter.is_alphabetic()) => {
                mentions.push(Mention { line: self.tokens[index].line, name: name.to_owned() });
                return;
            }
            _ => return,
        };
        if self.text(index + 1) == "::" {
            self.follow(index + 2, Some(next), here, mentions);
        }
    }

    /// Where the items of the group that opens at `index` begin.
    fn group_items(&self, index: usize) -> Vec<usize> {
        let mut depth = 0;
        let mut starts = vec![index + 1];
        for inside in index + 1..self.group_end(index) {
            match self.text(inside) {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 0 => starts.push(inside + 1),
                _ => {}
            }
        }
        starts
    }

    /// Just behind the brace that closes the group opened at `index`.
    fn group_end(&self, index: usize) -> usize {
        let mut depth = 0;
        for inside in index..self.tokens.len() {
            match self.text(inside) {
                "{" => depth += 1,
                "}" if depth == 1 => return inside + 1,
                "}" => depth -= 1,
                _ => {}
            }
        }
        self.tokens.len()
    }

    /// Whether the name at `index` is not where its path begins, or only says who may see an item: `pub(in
    /// crate::model)`.
    fn is_continued(&self, index: usize) -> bool {
        let before = |count: usize| index.checked_sub(count).map_or("", |index| self.text(index));
        before(1) == "::" || (before(1) == "in" && before(2) == "(")
    }

    fn text(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| &token.text)
    }
}

fn tokenize(text: &str) -> Vec<Token> {
    let letters: Vec<char> = text.chars().collect();
    let at = |index: usize| letters.get(index).copied().unwrap_or('\0');
    let mut tokens = Vec::new();
    let (mut index, mut line) = (0, 1);
    while index < letters.len() {
        let start = index;
        let mut token = None;
        match at(index) {
            '/' if at(index + 1) == '/' => {
                while index < letters.len() && at(index) != '\n' {
                    index += 1;
                }
            }
            '/' if at(index + 1) == '*' => index = comment_end(&letters, index),
            '"' => index = text_end(&letters, index),
            // A quote is a lifetime unless a second one follows the next letter or escape.
            '\'' if at(index + 1) == '\\' => index = quote_end(&letters, index),
            '\'' if at(index + 2) == '\'' => index += 3,
            ':' if at(index + 1) == ':' => {
                index += 2;
                token = Some("::".to_owned());
            }
            letter if letter.is_alphanumeric() || letter == '_' => {
                while at(index).is_alphanumeric() || at(index) == '_' {
                    index += 1;
                }
                let word: String = letters[start..index].iter().collect();
                if word.ends_with('r') && word.len() <= 2 && is_raw_text(&letters, index) {
                    index = raw_text_end(&letters, index);
                } else if word == "r" && at(index) == '#' {
                    // A raw identifier means the same name.
                    index += 1;
                } else {
                    token = Some(word);
                }
            }
            letter => {
                index += 1;
                token = (!letter.is_whitespace()).then(|| letter.to_string());
            }
        }
        tokens.extend(token.map(|text| Token { line, text }));
        line += letters[start..index.min(letters.len())].iter().filter(|letter| **letter == '\n').count();
    }
    tokens
}

fn comment_end(letters: &[char], start: usize) -> usize {
    let mut depth = 0;
    let mut index = start;
    while index + 1 < letters.len() {
        match (letters[index], letters[index + 1]) {
            ('/', '*') => depth += 1,
            ('*', '/') if depth == 1 => return index + 2,
            ('*', '/') => depth -= 1,
            _ => {
                index += 1;
                continue;
            }
        }
        index += 2;
    }
    letters.len()
}

fn text_end(letters: &[char], start: usize) -> usize {
    delimited_end(letters, start, '"')
}

fn quote_end(letters: &[char], start: usize) -> usize {
    delimited_end(letters, start, '\'')
}

fn delimited_end(letters: &[char], start: usize, delimiter: char) -> usize {
    let mut index = start + 1;
    while index < letters.len() && letters[index] != delimiter {
        index += if letters[index] == '\\' { 2 } else { 1 };
    }
    index + 1
}

/// Whether what follows an `r`, `br` or `cr` is a raw string: hashes, if any, and a quote.
fn is_raw_text(letters: &[char], index: usize) -> bool {
    letters[index..].iter().find(|letter| **letter != '#') == Some(&'"')
}

fn raw_text_end(letters: &[char], start: usize) -> usize {
    let hashes = letters[start..].iter().take_while(|letter| **letter == '#').count();
    let mut index = start + hashes + 1;
    while index < letters.len() {
        let closing = letters[index + 1..].iter().take(hashes).filter(|letter| **letter == '#').count();
        if letters[index] == '"' && closing == hashes {
            return index + 1 + hashes;
        }
        index += 1;
    }
    letters.len()
}
