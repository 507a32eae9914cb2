//! Documents and comments of this checkout, held to their readers.

use std::sync::LazyLock;

use holdfast_prose::{Fault, Tree};

static TREE: LazyLock<Tree> = LazyLock::new(Tree::read);

fn no_faults(faults: &[Fault]) {
    let told: String = faults.iter().map(|fault| format!("\n{fault}")).collect();
    assert!(faults.is_empty(), "{} to mend:{told}", faults.len());
}

#[test]
fn lines_are_no_wider_than_a_page() {
    no_faults(&holdfast_prose::widths(&TREE));
}

#[test]
fn tables_are_whole() {
    no_faults(&holdfast_prose::tables(&TREE));
}

#[test]
fn links_lead_somewhere() {
    no_faults(&holdfast_prose::links(&TREE));
}

#[test]
fn named_files_exist_and_have_what_is_named_beside_them() {
    no_faults(&holdfast_prose::paths(&TREE));
}

#[test]
fn names_that_are_given_exist_in_the_code() {
    no_faults(&holdfast_prose::names(&TREE));
}

#[test]
fn cited_numbers_are_given() {
    no_faults(&holdfast_prose::references(&TREE));
}

#[test]
fn canaries_are_where_documents_say() {
    no_faults(&holdfast_prose::canaries(&TREE));
}

#[test]
fn the_code_map_has_every_crate_and_no_arrow_points_up() {
    no_faults(&holdfast_prose::map(&TREE));
}

#[test]
fn no_module_uses_what_uses_it() {
    no_faults(&holdfast_prose::cycles(&TREE));
}

#[test]
fn no_example_is_left_unrun() {
    no_faults(&holdfast_prose::examples(&TREE));
}

#[test]
fn few_files_name_a_state_of_a_file() {
    no_faults(&holdfast_prose::states(&TREE));
}

#[test]
fn no_crate_file_or_function_is_too_large() {
    no_faults(&holdfast_prose::sizes(&TREE));
}

#[test]
fn no_sentence_of_a_message_has_a_gap() {
    no_faults(&holdfast_prose::strings(&TREE));
}

#[test]
fn no_word_points_at_what_no_reader_has() {
    no_faults(&holdfast_prose::words(&TREE));
}

#[test]
fn the_map_begins_with_few_words() {
    no_faults(&holdfast_prose::glossary(&TREE));
}

/// A check of nothing finds nothing: the tree has to have been read.
#[test]
fn the_tree_is_read() {
    let markdown = TREE.documents.iter().filter(|document| document.is_markdown).count();
    let comments: usize = TREE.documents.iter().map(|document| document.texts.len()).sum();
    assert!(markdown >= 10 && comments >= 5_000, "{markdown} documents, {comments} comments");
}
