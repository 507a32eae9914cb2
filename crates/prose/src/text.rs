//! Text as its reader sees it: which lines are prose, and which paragraph a word is in.
//!
//! It knows Markdown as far as this project writes it. It must never take code for prose: code is
//! held to the compiler.

/// What a line is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Words to read.
    Prose,
    /// A heading.
    Heading,
    /// A row of a table.
    Row,
    /// Code, or a picture.
    Code,
    /// Nothing.
    Blank,
}

/// One line.
#[derive(Debug)]
pub struct Line {
    /// From 1.
    pub number: usize,
    /// What it is.
    pub kind: Kind,
    /// Its words, without the marks of a comment.
    pub text: String,
    /// The columns of the whole line, marks and code before it included.
    pub columns: usize,
}

/// A paragraph, an item of a list, a heading or a row, as one line.
#[derive(Debug, Default)]
pub struct Block {
    /// Its words, one space between lines.
    pub text: String,
    starts: Vec<(usize, usize)>,
}

impl Block {
    /// The line in which the byte `at` of the text is.
    pub fn line(&self, at: usize) -> usize {
        self.starts.iter().rev().find(|(start, _)| *start <= at).map_or(1, |(_, line)| *line)
    }

    fn push(&mut self, line: &Line) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.starts.push((self.text.len(), line.number));
        self.text.push_str(line.text.trim());
    }
}

/// A run of lines that belong together: a document, or a comment.
#[derive(Debug)]
pub struct Text {
    /// All of them.
    pub lines: Vec<Line>,
}

/// The code spans of a text: where each begins, and what it says.
pub fn spans(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut at = 0;
    text.split('`').enumerate().filter_map(move |(index, part)| {
        let start = at;
        at += part.len() + 1;
        (index % 2 == 1).then_some((start, part))
    })
}

fn begins_item(text: &str) -> Option<usize> {
    let indent = text.len() - text.trim_start().len();
    let rest = &text[indent..];
    if rest.starts_with("- ") || rest.starts_with("* ") {
        return Some(indent + 2);
    }
    let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
    (digits > 0 && rest[digits..].starts_with(". ")).then_some(indent + digits + 2)
}

impl Text {
    /// Tells the lines apart: number, text, and columns of the whole line.
    pub fn new(lines: impl Iterator<Item = (usize, String, usize)>) -> Self {
        let (mut fenced, mut after_break, mut inside) = (false, true, 0);
        let lines = lines.map(|(number, text, columns)| {
            let trimmed = text.trim();
            let indent = text.len() - text.trim_start().len();
            let fence = trimmed.starts_with("```") || trimmed.starts_with("~~~");
            let kind = if fence {
                fenced = !fenced;
                Kind::Code
            } else if fenced {
                Kind::Code
            } else if trimmed.is_empty() {
                Kind::Blank
            } else if after_break && indent >= inside + 4 {
                Kind::Code
            } else if trimmed.starts_with('|') {
                Kind::Row
            } else if indent == 0
                && trimmed.trim_start_matches('#').starts_with(' ')
                && trimmed.starts_with('#')
            {
                Kind::Heading
            } else {
                Kind::Prose
            };
            if let Some(deeper) = begins_item(&text).filter(|_| kind == Kind::Prose) {
                inside = deeper;
            } else if kind == Kind::Heading || (kind == Kind::Prose && indent == 0 && after_break) {
                inside = 0;
            }
            after_break = matches!(kind, Kind::Blank | Kind::Code);
            Line { number, kind, text, columns }
        });
        Self { lines: lines.collect() }
    }

    /// Its paragraphs, items, headings and rows.
    pub fn blocks(&self) -> Vec<Block> {
        let mut blocks: Vec<Block> = Vec::new();
        let mut open = false;
        for line in &self.lines {
            match line.kind {
                Kind::Prose => {
                    if !open || begins_item(&line.text).is_some() {
                        blocks.push(Block::default());
                    }
                    open = true;
                }
                Kind::Heading | Kind::Row => {
                    blocks.push(Block::default());
                    open = false;
                }
                Kind::Code | Kind::Blank => {
                    open = false;
                    continue;
                }
            }
            blocks.last_mut().expect("one was begun").push(line);
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(of: &str) -> Text {
        Text::new(of.lines().enumerate().map(|(at, line)| (at + 1, line.to_owned(), line.len())))
    }

    #[test]
    fn code_is_no_prose() {
        let text = text(
            "# A\nprose\n\n    code\n\n```sh\nmore\n```\n| row |\n- item\n  goes on\n\n      code in it\n",
        );
        let kinds: Vec<_> = text.lines.iter().map(|line| line.kind).collect();
        use Kind::*;
        let expected = [Heading, Prose, Blank, Code, Blank, Code, Code, Code, Row, Prose, Prose, Blank, Code];
        assert_eq!(kinds, expected);
        let blocks: Vec<_> = text.blocks().into_iter().map(|block| block.text).collect();
        assert_eq!(blocks, ["# A", "prose", "| row |", "- item goes on"]);
    }

    #[test]
    fn a_block_knows_its_lines() {
        let blocks = text("one\ntwo `three`\n").blocks();
        let (at, span) = spans(&blocks[0].text).next().unwrap();
        assert_eq!((blocks[0].line(0), blocks[0].line(at), span), (1, 2, "three"));
    }
}
