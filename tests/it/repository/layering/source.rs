//! Just enough of Rust's grammar to see which modules and crates a file names.
//!
//! Text → [`Token`]s without comments, strings and lifetimes → [`Mention`]s: every path that starts at `crate`, `self` or
//! `super`, spelled out from the crate's root, one per item of a group.

/// One path to something in the same crate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mention {
    pub(super) line: usize,
    /// The module the path is written in, inline modules included.
    pub(super) within: Vec<String>,
    /// The names of modules, then of items, from the crate's root.
    pub(super) path: Vec<String>,
    /// How many times the path says `super`.
    pub(super) supers: usize,
    /// The name that a `use` gives it with `as`.
    pub(super) alias: Option<String>,
}

/// A file as tokens, with its own place in the crate.
pub(super) struct Source {
    tokens: Vec<Token>,
    module: Vec<String>,
}

#[derive(Debug, PartialEq, Eq)]
struct Token {
    line: usize,
    text: String,
}

impl Source {
    /// `module` is the file's module, from the crate's root.
    pub(super) fn read(module: Vec<String>, text: &str) -> Self {
        Self { tokens: tokenize(text), module }
    }

    /// Every path that starts in this crate.
    pub(super) fn mentions(&self) -> Vec<Mention> {
        let mut mentions = Vec::new();
        // The open braces; those of an inline module with its name.
        let mut open: Vec<Option<&str>> = Vec::new();
        let mut index = 0;
        while index < self.tokens.len() {
            match self.text(index) {
                "{" if index >= 2 && self.text(index - 2) == "mod" => open.push(Some(self.text(index - 1))),
                "{" => open.push(None),
                "}" => drop(open.pop()),
                start @ ("crate" | "super" | "self" | "tributary") if self.starts_path(index) => {
                    let within = self.within(&open);
                    let path = if matches!(start, "super" | "self") { within.clone() } else { Vec::new() };
                    let mut mention = Mention { line: 0, within, path, supers: 0, alias: None };
                    if start == "super" {
                        mention.go_up();
                    }
                    index = self.follow(index + 2, mention, &mut mentions);
                    continue;
                }
                _ => {}
            }
            index += 1;
        }
        mentions
    }

    /// The names that each `use` imports, with their targets: `pub use b::X` in `a` makes `a::X` an alias of `a::b::X`.
    pub(super) fn imports(&self) -> Vec<(Vec<String>, Vec<String>)> {
        let (mut imports, mut open) = (Vec::new(), Vec::<Option<&str>>::new());
        for index in 0..self.tokens.len() {
            match self.text(index) {
                "{" if index >= 2 && self.text(index - 2) == "mod" => open.push(Some(self.text(index - 1))),
                "{" => open.push(None),
                "}" => drop(open.pop()),
                "use" => {
                    let within = self.within(&open);
                    let from_root = matches!(self.text(index + 1), "crate" | "tributary");
                    let path = if from_root { Vec::new() } else { within.clone() };
                    let mention = Mention { line: 0, within: within.clone(), path, supers: 0, alias: None };
                    let mut named = Vec::new();
                    self.follow(index + if from_root { 3 } else { 1 }, mention, &mut named);
                    for Mention { path, alias, .. } in named {
                        let Some(name) = alias.or_else(|| path.last().cloned()) else { continue };
                        let import = [within.as_slice(), &[name]].concat();
                        if import != path {
                            imports.push((import, path));
                        }
                    }
                }
                _ => {}
            }
        }
        imports
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

    /// Follows the rest of a path, which is at `index`, into each item of its groups. Returns the index behind it.
    fn follow(&self, mut index: usize, mut mention: Mention, mentions: &mut Vec<Mention>) -> usize {
        loop {
            mention.line = self.tokens.get(index).map_or(0, |token| token.line);
            match self.text(index) {
                "{" => {
                    for start in self.group_items(index) {
                        self.follow(start, mention.clone(), mentions);
                    }
                    return self.group_end(index);
                }
                "self" => {}
                "super" => mention.go_up(),
                name if name == "*" || is_name(name) => mention.path.push(name.to_owned()),
                _ => break,
            }
            index += 1;
            if self.text(index) != "::" {
                break;
            }
            index += 1;
        }
        if self.text(index) == "as" {
            mention.alias = Some(self.text(index + 1).to_owned());
        }
        mentions.push(mention);
        index
    }

    /// The module that is open, by the braces that are.
    fn within(&self, open: &[Option<&str>]) -> Vec<String> {
        self.module.iter().cloned().chain(open.iter().flatten().map(|name| (*name).to_owned())).collect()
    }

    /// Where the items of the group that opens at `index` begin.
    fn group_items(&self, index: usize) -> Vec<usize> {
        let mut depth = 0;
        let mut starts = vec![index + 1];
        for inside in index + 1..self.group_end(index) - 1 {
            match self.text(inside) {
                "{" => depth += 1,
                "}" => depth -= 1,
                "," if depth == 0 => starts.push(inside + 1),
                _ => {}
            }
        }
        // A trailing comma begins no item.
        starts.retain(|start| self.text(*start) != "}");
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

    /// Whether a path starts at `index`: not in the middle of one, and not where it only limits who sees an item, as in
    /// `pub(in crate::model)`.
    fn starts_path(&self, index: usize) -> bool {
        let before = |count: usize| index.checked_sub(count).map_or("", |index| self.text(index));
        self.text(index + 1) == "::" && before(1) != "::" && !(before(1) == "in" && before(2) == "(")
    }

    fn text(&self, index: usize) -> &str {
        self.tokens.get(index).map_or("", |token| &token.text)
    }
}

impl Mention {
    fn go_up(&mut self) {
        self.path.pop();
        self.supers += 1;
    }
}

fn is_name(text: &str) -> bool {
    text.starts_with(|letter: char| letter.is_alphabetic() || letter == '_')
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
