//! The files that a shell command changes, as far as its text tells.
//!
//! This reads words, quotes, redirections, here-documents and the usual commands that write; it is no shell. What depends on
//! what only a shell would know (the output of a command, an unknown variable) is left out and never guessed, so a command that
//! is not understood changes nothing here. That is why commits and the CI are guarded as well.

use std::collections::BTreeMap;

use super::{Touch, patch};

/// The environment that the command runs in, as far as it is known.
pub type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// Scripts within scripts (`bash -c`, `$(...)`) are read so deep.
const DEPTH_MAX: usize = 8;
/// Words that braces may make of one.
const BRACES_MAX: usize = 64;

/// What a command changes. Paths are relative to where it starts, or absolute.
pub fn touched(command: &str, cwd: &str, outer: Variables) -> Vec<Touch> {
    let mut shell = Shell { outer, own: BTreeMap::from([("PWD".into(), Some(cwd.into()))]), cwd: Some(String::new()), found: Vec::new() };
    shell.script(command, 0);
    shell.found
}

/// The same for a command that is given as words, without a shell.
pub fn touched_by_words(words: &[&str], cwd: &str, outer: Variables) -> Vec<Touch> {
    let quoted: Vec<String> = words.iter().map(|word| format!("'{}'", word.replace('\'', "'\\''"))).collect();
    touched(&quoted.join(" "), cwd, outer)
}

// ------------------------------------------------------------------ words

enum Part {
    /// A character, and whether it is quoted.
    Text(char, bool),
    /// The value of a variable, and whether it is quoted.
    Variable(String, bool),
    /// The output of a script.
    Output(String),
    Unknown,
}

type Word = Vec<Part>;

enum Token {
    Word(Word),
    /// Ends a command.
    End,
    /// Begins and ends a shell of its own.
    Open,
    Close,
    /// The next word is a file; is it written?
    Redirect(bool),
    /// The next word is a file descriptor or a file that is written.
    Duplicate,
    Document(usize),
    HereString,
}

#[derive(Default)]
struct Lexer {
    text: Vec<char>,
    at: usize,
    tokens: Vec<Token>,
    word: Option<Word>,
    documents: Vec<String>,
    /// Here-documents whose text begins at the next line: end word, and whether tabs are stripped.
    pending: Vec<(usize, String, bool)>,
}

fn lex(text: &str) -> (Vec<Token>, Vec<String>) {
    let mut lexer = Lexer { text: text.chars().collect(), ..Lexer::default() };
    lexer.run();
    (lexer.tokens, lexer.documents)
}

impl Lexer {
    fn peek(&self, ahead: usize) -> Option<char> {
        self.text.get(self.at + ahead).copied()
    }

    fn take(&mut self, text: &str) -> bool {
        let is_next = text.chars().enumerate().all(|(ahead, c)| self.peek(ahead) == Some(c));
        if is_next {
            self.at += text.chars().count();
        }
        is_next
    }

    fn part(&mut self, part: Part) {
        self.word.get_or_insert_default().push(part);
    }

    fn token(&mut self, token: Token) {
        if let Some(word) = self.word.take() {
            self.tokens.push(Token::Word(word));
        }
        self.tokens.push(token);
    }

    fn space(&mut self) {
        if let Some(word) = self.word.take() {
            self.tokens.push(Token::Word(word));
        }
    }

    fn run(&mut self) {
        while let Some(c) = self.peek(0) {
            match c {
                '\\' if self.peek(1) == Some('\n') => self.at += 2,
                '\\' => {
                    if let Some(next) = self.peek(1) {
                        self.part(Part::Text(next, true));
                    }
                    self.at += 2;
                }
                '\'' => {
                    self.at += 1;
                    self.word.get_or_insert_default();
                    while let Some(c) = self.peek(0).filter(|c| *c != '\'') {
                        self.part(Part::Text(c, true));
                        self.at += 1;
                    }
                    self.at += 1;
                }
                '"' => self.double_quoted(),
                '$' => self.dollar(false),
                '`' => self.backquoted(),
                '\n' => {
                    self.at += 1;
                    self.token(Token::End);
                    self.read_documents();
                }
                ' ' | '\t' | '\r' => {
                    self.at += 1;
                    self.space();
                }
                '#' if self.word.is_none() => {
                    while self.peek(0).is_some_and(|c| c != '\n') {
                        self.at += 1;
                    }
                }
                ';' | '|' | '&' | '(' | ')' | '<' | '>' => self.operator(c),
                c => {
                    self.part(Part::Text(c, false));
                    self.at += 1;
                }
            }
        }
        self.space();
        self.read_documents();
    }

    fn double_quoted(&mut self) {
        self.at += 1;
        self.word.get_or_insert_default();
        while let Some(c) = self.peek(0) {
            match c {
                '"' => break,
                '\\' if matches!(self.peek(1), Some('"' | '\\' | '$' | '`')) => {
                    self.part(Part::Text(self.text[self.at + 1], true));
                    self.at += 2;
                }
                '$' => self.dollar(true),
                '`' => self.backquoted(),
                c => {
                    self.part(Part::Text(c, true));
                    self.at += 1;
                }
            }
        }
        self.at += 1;
    }

    fn dollar(&mut self, quoted: bool) {
        self.at += 1;
        if self.take("((") {
            self.until_closed(2);
            return self.part(Part::Unknown);
        }
        if self.take("(") {
            let script = self.until_closed(1);
            return self.part(Part::Output(script));
        }
        if self.take("{") {
            let mut name = String::new();
            while let Some(c) = self.peek(0).filter(|c| *c != '}') {
                name.push(c);
                self.at += 1;
            }
            self.at += 1;
            let is_plain = !name.is_empty() && name.chars().all(is_of_name);
            return self.part(if is_plain { Part::Variable(name, quoted) } else { Part::Unknown });
        }
        let mut name = String::new();
        while let Some(c) = self.peek(0).filter(|c| is_of_name(*c)) {
            name.push(c);
            self.at += 1;
        }
        match (name.is_empty(), self.peek(0)) {
            (false, _) => self.part(Part::Variable(name, quoted)),
            // $'...' and $"..." are quotes; escapes in the former are rare in paths.
            (true, Some('\'' | '"')) if !quoted => {}
            (true, Some('@' | '*' | '#' | '?' | '$' | '!' | '-')) => {
                self.at += 1;
                self.part(Part::Unknown);
            }
            (true, _) => self.part(Part::Text('$', true)),
        }
    }

    fn backquoted(&mut self) {
        self.at += 1;
        let mut script = String::new();
        while let Some(c) = self.peek(0).filter(|c| *c != '`') {
            script.push(c);
            self.at += 1;
        }
        self.at += 1;
        self.part(Part::Output(script));
    }

    /// The text up to the bracket that closes what has been opened so many times.
    fn until_closed(&mut self, opened: usize) -> String {
        let (mut depth, start) = (opened, self.at);
        let mut quote = None;
        while let Some(c) = self.peek(0) {
            match (quote, c) {
                (None, '\'' | '"') => quote = Some(c),
                (Some(open), c) if open == c => quote = None,
                (None | Some('"'), '\\') => self.at += 1,
                (None, '(') => depth += 1,
                (None, ')') => {
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
            self.at += 1;
        }
        let end = self.at.min(self.text.len());
        self.at += 1;
        self.text[start.min(end)..end].iter().collect()
    }

    fn operator(&mut self, c: char) {
        let is_number = |word: &Word| word.iter().all(|part| matches!(part, Part::Text(c, false) if c.is_ascii_digit()));
        if matches!(c, '<' | '>') && self.word.as_ref().is_some_and(is_number) {
            // The number of a file descriptor, no word.
            self.word = None;
        }
        if self.take("&>>") || self.take("&>") || self.take(">>") || self.take(">|") || self.take("<>") {
            self.token(Token::Redirect(true));
        } else if self.take(">&") {
            self.token(Token::Duplicate);
        } else if self.take("<<<") {
            self.token(Token::HereString);
        } else if self.take("<<-") {
            self.document(true);
        } else if self.take("<<") {
            self.document(false);
        } else if self.take("<&") {
            self.token(Token::Redirect(false));
        } else if self.take("<(") || self.take(">(") {
            let script = self.until_closed(1);
            self.part(Part::Output(script));
        } else if self.take("((") {
            self.until_closed(2);
            self.token(Token::End);
        } else {
            self.at += 1;
            self.token(match c {
                '>' => Token::Redirect(true),
                '<' => Token::Redirect(false),
                '(' => Token::Open,
                ')' => Token::Close,
                _ => Token::End,
            });
        }
    }

    fn document(&mut self, strip_tabs: bool) {
        while matches!(self.peek(0), Some(' ' | '\t')) {
            self.at += 1;
        }
        let mut end = String::new();
        while let Some(c) = self.peek(0).filter(|c| !c.is_whitespace() && !";|&<>()".contains(*c)) {
            if !matches!(c, '\'' | '"' | '\\') {
                end.push(c);
            }
            self.at += 1;
        }
        self.pending.push((self.documents.len(), end, strip_tabs));
        self.token(Token::Document(self.documents.len()));
        self.documents.push(String::new());
    }

    /// Reads what the here-documents of the line that has just ended hold.
    fn read_documents(&mut self) {
        for (index, end, strip_tabs) in std::mem::take(&mut self.pending) {
            while self.at < self.text.len() {
                let length = self.text[self.at..].iter().position(|c| *c == '\n').unwrap_or(self.text.len() - self.at);
                let line: String = self.text[self.at..self.at + length].iter().collect();
                self.at = (self.at + length + 1).min(self.text.len());
                let line = if strip_tabs { line.trim_start_matches('\t') } else { &line };
                if line == end {
                    break;
                }
                self.documents[index].push_str(line);
                self.documents[index].push('\n');
            }
        }
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

// ------------------------------------------------------------------ commands

struct Shell<'a> {
    outer: Variables<'a>,
    /// Variables that the script has set; `None` for those whose value is not known.
    own: BTreeMap<String, Option<String>>,
    /// Relative to where the command starts, or absolute; `None` once it is not known.
    cwd: Option<String>,
    found: Vec<Touch>,
}

/// A word after expansion.
#[derive(Clone)]
struct Argument {
    text: String,
    /// The same as a pattern, if it holds unquoted wildcards.
    pattern: Option<String>,
}

/// One simple command.
#[derive(Default)]
struct Command {
    words: Vec<Word>,
    written: Vec<Word>,
    duplicated: Vec<Word>,
    /// What stands in its here-documents and here-strings.
    input: String,
}

/// `None` stands for an argument that is not known; it keeps its place.
type Arguments = Vec<Option<Argument>>;

impl Shell<'_> {
    fn script(&mut self, text: &str, depth: usize) {
        if depth > DEPTH_MAX {
            return;
        }
        let (tokens, documents) = lex(text);
        let (mut command, mut outer) = (Command::default(), Vec::new());
        let mut tokens = tokens.into_iter().peekable();
        while let Some(token) = tokens.next() {
            match token {
                Token::Word(word) => command.words.push(word),
                Token::Document(index) => command.input.push_str(&documents[index]),
                Token::Redirect(_) | Token::Duplicate | Token::HereString => {
                    let Some(Token::Word(word)) = tokens.next_if(|next| matches!(next, Token::Word(_))) else { continue };
                    match token {
                        Token::Redirect(true) => command.written.push(word),
                        Token::Duplicate => command.duplicated.push(word),
                        Token::HereString => {
                            let text = self.expand(word, depth).into_iter().flatten().map(|argument| argument.text);
                            command.input.extend(text);
                        }
                        _ => {}
                    }
                }
                Token::End => self.run(std::mem::take(&mut command), depth),
                Token::Open => {
                    self.run(std::mem::take(&mut command), depth);
                    outer.push((self.cwd.clone(), self.own.clone()));
                }
                Token::Close => {
                    self.run(std::mem::take(&mut command), depth);
                    if let Some((cwd, own)) = outer.pop() {
                        (self.cwd, self.own) = (cwd, own);
                    }
                }
            }
        }
        self.run(command, depth);
    }

    /// In a shell of its own, whose directory and variables end with it.
    fn nested(&mut self, script: &str, depth: usize) {
        let kept = (self.cwd.clone(), self.own.clone());
        self.script(script, depth + 1);
        (self.cwd, self.own) = kept;
    }

    fn variable(&self, name: &str) -> Option<String> {
        self.own.get(name).cloned().unwrap_or_else(|| (self.outer)(name))
    }

    /// All words that a word becomes.
    fn expand(&mut self, word: Word, depth: usize) -> Arguments {
        let (mut fields, mut last) = (Vec::new(), Vec::new());
        let mut is_known = true;
        for part in word {
            match part {
                Part::Text('~', false) if fields.is_empty() && last.is_empty() => match self.variable("HOME") {
                    Some(home) => last.extend(home.chars().map(|c| (c, true))),
                    None => is_known = false,
                },
                Part::Text(c, quoted) => last.push((c, quoted)),
                Part::Unknown => is_known = false,
                Part::Output(script) => {
                    self.nested(&script, depth);
                    is_known = false;
                }
                Part::Variable(name, quoted) => match self.variable(&name) {
                    None => is_known = false,
                    Some(value) if quoted => last.extend(value.chars().map(|c| (c, true))),
                    Some(value) => {
                        for (index, piece) in value.split_whitespace().enumerate() {
                            if index > 0 {
                                fields.push(std::mem::take(&mut last));
                            }
                            last.extend(piece.chars().map(|c| (c, false)));
                        }
                    }
                },
            }
        }
        if !is_known {
            return vec![None];
        }
        fields.push(last);
        fields.into_iter().flat_map(braces).map(|field| Some(argument(field))).collect()
    }

    fn run(&mut self, command: Command, depth: usize) {
        let Command { words, written, duplicated, input } = command;
        let mut arguments: Arguments = Vec::new();
        let mut is_start = true;
        for word in words {
            let assigned = is_start.then(|| assignment(&word)).flatten();
            let expanded = self.expand(word, depth);
            match assigned {
                Some(name) => {
                    let whole = expanded.into_iter().map(|argument| argument.map(|argument| argument.text)).collect::<Option<Vec<_>>>();
                    let value = whole.map(|words| words.join(" ")).and_then(|text| Some(text.split_once('=')?.1.to_string()));
                    self.own.insert(name, value);
                }
                None => {
                    is_start &= is_prefix(&expanded);
                    arguments.extend(expanded);
                }
            }
        }
        let is_test = arguments.iter().flatten().any(|argument| matches!(argument.text.as_str(), "[[" | "]]"));
        if !is_test {
            for argument in written.into_iter().flat_map(|word| self.expand(word, depth)).collect::<Vec<_>>() {
                self.write(&argument);
            }
            for argument in duplicated.into_iter().flat_map(|word| self.expand(word, depth)).collect::<Vec<_>>() {
                let is_file = |text: &str| text != "-" && !text.trim_end_matches('-').bytes().all(|byte| byte.is_ascii_digit());
                if argument.as_ref().is_some_and(|argument| is_file(&argument.text)) {
                    self.write(&argument);
                }
            }
            self.command(&arguments, &input, depth);
        }
    }

    fn command(&mut self, mut arguments: &[Option<Argument>], input: &str, depth: usize) {
        // Words of the language before a command, and commands that run another one.
        let name = loop {
            let Some((Some(first), rest)) = arguments.split_first() else { return };
            let name = first.text.rsplit('/').next().unwrap_or_default();
            arguments = match name {
                "if" | "then" | "else" | "elif" | "do" | "while" | "until" | "!" | "{" | "time" | "nohup" | "command" | "exec"
                | "builtin" | "setsid" => rest,
                "sudo" | "doas" => after_options(rest, &["-u", "-g", "-C", "-h", "-p", "-r", "-t"], 0),
                "nice" | "ionice" => after_options(rest, &["-n", "-c"], 0),
                "timeout" => after_options(rest, &["-s", "-k", "--signal", "--kill-after"], 1),
                "stdbuf" => after_options(rest, &["-i", "-o", "-e"], 0),
                "xargs" => after_options(rest, &["-I", "-n", "-P", "-L", "-d", "-E", "-s", "-a"], 0),
                "env" => {
                    let rest = after_options(rest, &["-u", "-C", "-S"], 0);
                    let is_command = |argument: &Option<Argument>| argument.as_ref().is_none_or(|argument| !argument.text.contains('='));
                    &rest[rest.iter().position(is_command).unwrap_or(rest.len())..]
                }
                _ => break name.to_string(),
            };
        };
        let rest = &arguments[1..];
        match name.as_str() {
            "tee" | "sponge" | "ed" | "ex" => self.write_all(&split(rest, &[]).1),
            "touch" => self.write_all(&split(rest, &["-d", "-t", "-r", "--date", "--reference"]).1),
            "truncate" => self.write_all(&split(rest, &["-s", "-r", "--size", "--reference"]).1),
            "rm" | "unlink" | "rmdir" => self.replace_all(&split(rest, &[]).1),
            "shred" => self.replace_all(&split(rest, &["-n", "-s"]).1),
            "mv" => self.moved(rest),
            "cp" => self.copied(rest, &["-t", "-S", "--target-directory", "--suffix"], Touch::write),
            "ln" => self.copied(rest, &["-t", "-S", "--target-directory", "--suffix"], Touch::replace),
            "rsync" => self.copied(rest, &["-e", "-f", "--rsh", "--exclude", "--include", "--filter"], Touch::write),
            "install" if !split(rest, &[]).0.iter().any(|(option, _)| option == "-d") => {
                self.copied(rest, &["-m", "-o", "-g", "-t", "-S", "--mode", "--owner", "--group", "--target-directory"], Touch::write);
            }
            "dd" => {
                let outputs = rest.iter().flatten().filter_map(|argument| argument.text.strip_prefix("of=")).map(plain).collect::<Vec<_>>();
                self.write_all(&outputs);
            }
            "sort" => self.write_option(rest, &["-o", "--output"]),
            "curl" => self.write_option(rest, &["-o", "--output"]),
            "wget" => self.write_option(rest, &["-O", "--output-document"]),
            "sed" | "gsed" => self.sed(rest),
            "perl" | "ruby" => self.script_in_place(rest),
            "git" => self.git(rest, input),
            "patch" => {
                self.write_option(rest, &["-o", "--output"]);
                let (_, operands) = split(rest, &["-p", "-i", "-d", "-o", "-r", "--strip", "--input", "--directory", "--output"]);
                self.write_all(&operands.into_iter().take(1).collect::<Vec<_>>());
                self.patched(input);
            }
            "apply_patch" | "applypatch" => {
                self.patched(input);
                for argument in rest.iter().flatten() {
                    self.patched(&argument.text);
                }
            }
            "sh" | "bash" | "zsh" | "dash" | "ksh" => {
                let (options, operands) = split(rest, &["-o", "-O", "--rcfile", "--init-file"]);
                match (options.iter().any(|(option, _)| option == "-c"), operands.first()) {
                    (true, Some(Some(script))) => self.nested(&script.text.clone(), depth),
                    (false, None) => self.nested(input, depth),
                    _ => {}
                }
            }
            "eval" => {
                let words: Vec<&str> = rest.iter().flatten().map(|argument| argument.text.as_str()).collect();
                self.script(&words.join(" "), depth + 1);
            }
            "cd" | "pushd" => {
                let (_, operands) = split(rest, &[]);
                let to = match operands.first() {
                    None => self.variable("HOME"),
                    Some(argument) => argument.as_ref().filter(|argument| argument.text != "-").map(|argument| argument.text.clone()),
                };
                self.cwd = to.and_then(|to| self.place(&to));
            }
            "popd" => self.cwd = None,
            "export" | "local" | "declare" | "readonly" | "typeset" => {
                for (name, value) in rest.iter().flatten().filter_map(|argument| argument.text.split_once('=')) {
                    self.own.insert(name.into(), Some(value.into()));
                }
            }
            "for" | "select" | "read" => {
                for argument in rest.iter().flatten().take_while(|argument| argument.text != "in") {
                    self.own.insert(argument.text.clone(), None);
                }
            }
            _ => {}
        }
    }

    // -------- commands that write

    fn moved(&mut self, rest: &[Option<Argument>]) {
        let valued = ["-t", "-S", "--target-directory", "--suffix"];
        let (options, operands) = split(rest, &valued);
        let sources = if has_target(&options) { &operands[..] } else { &operands[..operands.len().saturating_sub(1)] };
        self.replace_all(sources);
        self.copied(rest, &valued, Touch::replace);
    }

    /// The destination of a copy, as itself or as a folder that gets something new in it.
    fn copied(&mut self, rest: &[Option<Argument>], valued: &[&str], touch: fn(String) -> Touch) {
        let (options, mut operands) = split(rest, valued);
        let target = options.into_iter().find(|(option, _)| is_target(option)).map(|(_, value)| value);
        let destination = match target {
            Some(target) => target,
            None if operands.len() > 1 => operands.pop().flatten(),
            // `ln -s ../a` makes its link here.
            None => Some(Argument { text: ".".into(), pattern: None }),
        };
        let Some(destination) = destination.filter(|destination| !destination.text.contains("://")) else { return };
        let Some(path) = self.place(&destination.text) else { return };
        let sources = operands.iter().flatten().filter(|operand| operand.pattern.is_none());
        let names = sources.filter_map(|operand| operand.text.trim_end_matches('/').rsplit('/').next());
        let into: Vec<String> = names.filter(|name| !matches!(*name, "" | "." | "..")).map(String::from).collect();
        // Without a known name, what happens in a folder is not known; a file would be written.
        let touch = if into.is_empty() { Touch::write } else { touch };
        self.found.push(Touch { into, ..touch(path) });
    }

    fn sed(&mut self, rest: &[Option<Argument>]) {
        let (mut in_place, mut has_script, mut operands) = (false, false, Vec::new());
        let mut rest = rest.iter();
        while let Some(argument) = rest.next() {
            let Some(text) = argument.as_ref().map(|argument| argument.text.as_str()) else {
                operands.push(argument.clone());
                continue;
            };
            match text {
                "--expression" | "--file" | "--line-length" => {
                    has_script |= text != "--line-length";
                    rest.next();
                }
                long if long.starts_with("--in-place") => in_place = true,
                long if long.starts_with("--expression=") || long.starts_with("--file=") => has_script = true,
                long if long.starts_with("--") => {}
                short if short.starts_with('-') && short.len() > 1 => {
                    for (index, letter) in short.char_indices().skip(1) {
                        match letter {
                            'i' => {
                                // The rest of the word is the ending of the copy that it keeps.
                                in_place = true;
                                break;
                            }
                            'e' | 'f' | 'l' => {
                                has_script |= letter != 'l';
                                if index + 1 == short.len() {
                                    rest.next();
                                }
                                break;
                            }
                            _ => {}
                        }
                    }
                }
                // BSD's `-i ''`.
                "" if in_place => {}
                _ => operands.push(argument.clone()),
            }
        }
        if in_place {
            self.write_all(&operands[if has_script { 0 } else { operands.len().min(1) }..]);
        }
    }

    /// `perl -pi -e '...' FILES`, and ruby's likewise.
    fn script_in_place(&mut self, rest: &[Option<Argument>]) {
        let (options, operands) = split(rest, &["-e", "-E", "-I", "-M", "-i"]);
        // Of `-i`, the rest of its word is an ending; alone it has none, and what follows is no value of it.
        let is = |wanted: &str| options.iter().any(|(option, _)| option == wanted);
        if is("-i") {
            self.write_all(&operands[if is("-e") || is("-E") { 0 } else { operands.len().min(1) }..]);
        }
    }

    fn git(&mut self, rest: &[Option<Argument>], input: &str) {
        let kept = self.cwd.clone();
        let mut rest = rest;
        while let Some((Some(first), more)) = rest.split_first() {
            rest = match first.text.as_str() {
                "-C" => {
                    let folder = more.first().and_then(Option::as_ref).map(|argument| argument.text.clone());
                    self.cwd = folder.and_then(|folder| self.place(&folder));
                    more.get(1..).unwrap_or_default()
                }
                "-c" | "--git-dir" | "--work-tree" => more.get(1..).unwrap_or_default(),
                option if option.starts_with('-') => more,
                _ => break,
            };
        }
        if let Some((Some(verb), rest)) = rest.split_first() {
            let (options, operands) = split(rest, &["-s", "--source", "--pathspec-from-file"]);
            let has = |names: &[&str]| options.iter().any(|(option, _)| names.contains(&option.as_str()));
            match verb.text.as_str() {
                "rm" if !has(&["--cached"]) => self.replace_all(&operands),
                "mv" => self.moved(rest),
                "restore" if !has(&["--staged", "-S"]) || has(&["--worktree", "-W"]) => self.replace_all(&operands),
                "checkout" => {
                    let is_dashes = |argument: &Option<Argument>| argument.as_ref().is_some_and(|argument| argument.text == "--");
                    let paths = rest.iter().position(is_dashes).map_or(&[][..], |dashes| &rest[dashes + 1..]);
                    self.replace_all(paths);
                }
                "apply" | "am" => self.patched(input),
                _ => {}
            }
        }
        self.cwd = kept;
    }

    fn patched(&mut self, text: &str) {
        for touch in patch::touched(text) {
            if let Some(path) = self.place(&touch.path) {
                self.found.push(Touch { path, ..touch });
            }
        }
    }

    fn write_option(&mut self, rest: &[Option<Argument>], names: &[&str]) {
        let (options, _) = split(rest, names);
        let values: Arguments =
            options.into_iter().filter(|(option, _)| names.contains(&option.as_str())).map(|(_, value)| value).collect();
        self.write_all(&values);
    }

    // -------- what is found

    /// Where a path leads from here; nothing when it is not known where here is.
    fn place(&self, path: &str) -> Option<String> {
        match &self.cwd {
            _ if path.starts_with('/') => Some(path.into()),
            Some(cwd) if cwd.is_empty() => Some(path.into()),
            Some(cwd) => Some(format!("{}/{path}", cwd.trim_end_matches('/'))),
            None => None,
        }
    }

    fn add(&mut self, argument: &Option<Argument>, touch: fn(String) -> Touch) {
        let Some(argument) =
            argument.as_ref().filter(|argument| !argument.text.is_empty() && argument.text != "-" && argument.text != "{}")
        else {
            return;
        };
        if ["/dev/", "/proc/"].iter().any(|device| argument.text.starts_with(device)) {
            return;
        }
        let is_pattern = argument.pattern.is_some();
        if let Some(path) = self.place(argument.pattern.as_ref().unwrap_or(&argument.text)) {
            self.found.push(Touch { is_pattern, ..touch(path) });
        }
    }

    fn write(&mut self, argument: &Option<Argument>) {
        self.add(argument, Touch::write);
    }

    fn write_all(&mut self, arguments: &[Option<Argument>]) {
        arguments.iter().for_each(|argument| self.write(argument));
    }

    fn replace_all(&mut self, arguments: &[Option<Argument>]) {
        arguments.iter().for_each(|argument| self.add(argument, Touch::replace));
    }
}

fn plain(text: &str) -> Option<Argument> {
    Some(Argument { text: text.into(), pattern: None })
}

/// The name that `NAME=value` sets.
fn assignment(word: &Word) -> Option<String> {
    let mut name = String::new();
    for part in word {
        match part {
            Part::Text('=', false) if !name.is_empty() => return Some(name),
            Part::Text(c, false) if is_of_name(*c) && !(name.is_empty() && c.is_ascii_digit()) => name.push(*c),
            _ => return None,
        }
    }
    None
}

/// Whether a command may still begin after this word.
fn is_prefix(words: &Arguments) -> bool {
    let first = words.first().and_then(Option::as_ref).map_or("", |argument| argument.text.as_str());
    matches!(first, "if" | "then" | "else" | "elif" | "do" | "while" | "until" | "!" | "{" | "time")
}

fn argument(field: Vec<(char, bool)>) -> Argument {
    let is_wild = field.iter().any(|(c, quoted)| !quoted && matches!(c, '*' | '?' | '['));
    let pattern = is_wild.then(|| {
        field.iter().fold(String::new(), |mut pattern, (c, quoted)| {
            match c {
                '*' | '?' | '[' | ']' if *quoted => pattern.extend(['[', *c, ']']),
                c => pattern.push(*c),
            }
            pattern
        })
    });
    Argument { text: field.into_iter().map(|(c, _)| c).collect(), pattern }
}

/// `a{b,c}` is `ab` and `ac`. Too many are left as they stand.
fn braces(field: Vec<(char, bool)>) -> Vec<Vec<(char, bool)>> {
    let (mut done, mut open) = (Vec::new(), vec![field]);
    while let Some(field) = open.pop() {
        let Some((start, end, commas)) = first_braces(&field) else {
            done.push(field);
            continue;
        };
        if done.len() + open.len() > BRACES_MAX {
            done.push(field);
            continue;
        }
        let mut cuts = vec![start];
        cuts.extend(commas);
        cuts.push(end);
        // The last first, since they are taken from the end.
        for cut in cuts.windows(2).rev() {
            open.push([&field[..start], &field[cut[0] + 1..cut[1]], &field[end + 1..]].concat());
        }
    }
    done
}

/// The first braces that hold a comma: where they open and close, and their own commas.
fn first_braces(field: &[(char, bool)]) -> Option<(usize, usize, Vec<usize>)> {
    for start in (0..field.len()).filter(|index| field[*index] == ('{', false)) {
        let (mut depth, mut commas) = (0, Vec::new());
        for (index, part) in field.iter().enumerate().skip(start) {
            match part {
                ('{', false) => depth += 1,
                (',', false) if depth == 1 => commas.push(index),
                ('}', false) => {
                    depth -= 1;
                    if depth == 0 && !commas.is_empty() {
                        return Some((start, index, commas));
                    }
                    if depth == 0 {
                        break;
                    }
                }
                _ => {}
            }
        }
    }
    None
}

fn is_target(option: &str) -> bool {
    matches!(option, "-t" | "--target-directory")
}

fn has_target(options: &[(String, Option<Argument>)]) -> bool {
    options.iter().any(|(option, _)| is_target(option))
}

/// Options with their values, and operands in order. `valued` are the options that take a value; a letter among several in one
/// word counts as an option of its own.
fn split(arguments: &[Option<Argument>], valued: &[&str]) -> (Vec<(String, Option<Argument>)>, Arguments) {
    let (mut options, mut operands) = (Vec::new(), Vec::new());
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let text = argument.as_ref().map_or("", |argument| argument.text.as_str());
        if text == "--" {
            operands.extend(rest.by_ref().cloned());
        } else if text.starts_with("--") {
            match text.split_once('=') {
                Some((name, value)) => options.push((name.to_string(), plain(value))),
                None if valued.contains(&text) => options.push((text.to_string(), rest.next().cloned().flatten())),
                None => options.push((text.to_string(), None)),
            }
        } else if text.starts_with('-') && text.len() > 1 {
            for (index, letter) in text.char_indices().skip(1) {
                let (option, after) = (format!("-{letter}"), &text[index + letter.len_utf8()..]);
                // `-i` of perl takes only what is in its own word.
                let takes = valued.contains(&option.as_str());
                let value = match (takes, after) {
                    (false, _) => None,
                    (true, "") if letter == 'i' => None,
                    (true, "") => rest.next().cloned().flatten(),
                    (true, value) => plain(value),
                };
                options.push((option, value));
                if takes {
                    break;
                }
            }
        } else {
            operands.push(argument.clone());
        }
    }
    (options, operands)
}

/// What is left of the arguments of a command that runs another: after its options and so many operands.
fn after_options<'a>(arguments: &'a [Option<Argument>], valued: &[&str], operands: usize) -> &'a [Option<Argument>] {
    let mut index = 0;
    while let Some(Some(argument)) = arguments.get(index) {
        if !argument.text.starts_with('-') {
            break;
        }
        index += if valued.contains(&argument.text.as_str()) { 2 } else { 1 };
    }
    arguments.get(index + operands..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(command: &str, wanted: &[&str]) {
        let variable = |name: &str| (name == "HOME").then(|| "/home/mara".to_string());
        let mut found: Vec<String> = touched(command, "/repo", &variable)
            .into_iter()
            .map(|touch| match (touch.is_pattern, touch.into.is_empty()) {
                (true, _) => format!("pattern {}", touch.path),
                (false, true) => touch.path,
                (false, false) => format!("{} <- {}", touch.path, touch.into.join(" ")),
            })
            .collect();
        found.dedup();
        assert_eq!(found, wanted, "{command}");
    }

    #[test]
    fn redirections_write_and_reading_does_not() {
        check("echo x > a.rs", &["a.rs"]);
        check("echo x >>a.rs 2>&1", &["a.rs"]);
        check("cmd 2> 'an error' >| b &> c", &["an error", "b", "c"]);
        check("cat < a.rs > /dev/null", &[]);
        check("cat a.rs | grep x && ls; test 1 -gt 0", &[]);
        check("cmd >&2; cmd >& both", &["both"]);
        check("[[ a > b ]] && (( 1 > 2 )); echo $((1 > 0))", &[]);
        check("echo '> no' \"> no\" \\> no # > no", &[]);
        check("cat > a.rs <<'EOF'\nrm not-this > nor-this\nEOF\nrm b", &["a.rs", "b"]);
        check("cat <<-X >a\n\tx\n\tX\nrm b", &["a", "b"]);
    }

    #[test]
    fn the_usual_commands_that_write_are_known() {
        check("tee -a a 'b c'", &["a", "b c"]);
        check("sed -i 's/x/y/' a b", &["a", "b"]);
        check("sed -i.bak -e 's/x/y/' a", &["a"]);
        check("sed -i '' 's/x/y/' a", &["a"]);
        check("sed -Ei \"s/$X/y/\" a; sed --in-place=.o s/x/y/ b", &["a", "b"]);
        check("sed -n 1,20p a", &[]);
        check("perl -pi -e 's/x/y/' a; perl -i.bak -pe 1 b; perl -ne print c", &["a", "b"]);
        check("rm -rf -- a '-b'", &["a", "-b"]);
        check("mv a b", &["a", "b <- a"]);
        check("mv -t dir a b", &["a", "b", "dir <- a b"]);
        check("cp -r x/a b", &["b <- a"]);
        check("ln -s ../x", &[". <- x"]);
        check("dd if=/dev/zero of=a bs=1; truncate -s 0 b; touch -d now c", &["a", "b", "c"]);
        check("sort -o a b; curl -sSo c http://x; wget -qO d http://x", &["a", "c", "d"]);
        check(
            "git rm -q a; git mv b c; git -C sub checkout -- d; git restore e; git restore --staged f; git checkout main",
            &["a", "b", "c <- b", "sub/d", "e"],
        );
        check("cat a; head b; diff a b; git add a; git commit -m 'x > y'; mkdir d", &[]);
    }

    #[test]
    fn a_command_inside_of_another_counts() {
        check("sudo -u root rm a; env X=1 rm b; timeout -k 1 5 rm c; nohup nice -n 5 rm d; X=1 rm e", &["a", "b", "c", "d", "e"]);
        check("bash -lc 'rm a && cd sub && rm b'; rm c", &["a", "sub/b", "c"]);
        check("echo $(rm a) `rm b` <(rm c)", &["a", "b", "c"]);
        check("if true; then rm a; else rm b; fi; for f in x; do rm c $f; done", &["a", "b", "c"]);
        check("find . | xargs -n 1 sed -i s/x/y/ a", &["a"]);
        check("(cd sub; rm a); rm b; { rm c; } > d; eval 'rm e'", &["sub/a", "b", "c", "d", "e"]);
        check("bash <<'X'\nrm a\nX", &["a"]);
        check("bash script.sh; python3 -c 'open(1)'", &[]);
    }

    #[test]
    fn names_are_expanded_as_far_as_they_are_known() {
        check("rm ~/a $HOME/b \"${HOME}/c d\" $PWD/e", &["/home/mara/a", "/home/mara/b", "/home/mara/c d", "/repo/e"]);
        check("F=a.rs; rm $F; G='b c'; rm $G \"$G\"", &["a.rs", "b", "c", "b c"]);
        check("rm $UNKNOWN/a $(ls) b", &["b"]);
        check("rm src/{a,b{1,2}}.rs", &["src/a.rs", "src/b1.rs", "src/b2.rs"]);
        check("rm src/*.rs 'a*' b'?'*", &["pattern src/*.rs", "a*", "pattern b[?]*"]);
        check("cd /x && rm a; cd sub; rm b; cd $UNKNOWN; rm c; rm /d", &["/x/a", "/x/sub/b", "/d"]);
        check("cd src\nrm ../a 'ü b.rs'", &["src/../a", "src/ü b.rs"]);
    }

    #[test]
    fn a_patch_in_a_here_document_names_its_files() {
        let patch = "*** Begin Patch\n*** Update File: src/a.rs\n@@\n-x\n+y\n*** End Patch";
        check(&format!("apply_patch <<'EOF'\n{patch}\nEOF"), &["src/a.rs"]);
        check(&format!("cd sub && apply_patch <<EOF\n{patch}\nEOF\n"), &["sub/src/a.rs"]);
        check(&format!("apply_patch '{patch}'"), &["src/a.rs"]);
        check("patch -p1 <<X\n--- a/f\n+++ b/f\n@@\nX\ngit apply - <<X\n--- a/g\n+++ b/g\nX", &["f", "g"]);
    }

    #[test]
    fn broken_and_hostile_text_ends() {
        for text in ["'", "\"", "$(", "${", "`", "<<", "<<EOF", "\\", "{,,", "((", ">", "a >", "$((", "))", "x=$(x=$(x=$(", "((((((("] {
            let _ = touched(text, "/repo", &|_| None);
        }
        let deep = "bash -c \"$(".repeat(2_000);
        let _ = touched(&deep, "/repo", &|_| None);
        assert!(touched(&format!("rm {}", "{a,b}".repeat(40)), "/repo", &|_| None).len() < 1_000);
    }
}
