//! PostgreSQL with `full_page_writes=off`, and InnoDB without its double write: they take for
//! granted that a page is written as a whole. On a disk that tears pages in power cuts they are
//! damaged natively. Under Holdfast a write is there as a whole or not at all: every page has its
//! checksum and every acknowledged row is there.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::mariadb::MariaDb;
use holdfast_e2e::workload::postgres::Postgres;

#[test]
fn survives_power_cuts_on_ext4() {
    crash::survives_forgetful_disk(&Postgres::without_full_page_writes(), Kind::Ext4);
}

#[test]
fn innodb_survives_power_cuts_on_ext4() {
    crash::survives_forgetful_disk(&MariaDb::without_double_write(), Kind::Ext4);
}

/// By hand: a cut has to meet a page between two flushes, and twenty of them may meet none.
#[test]
#[ignore = "chance: cargo test -p holdfast-e2e --test full_pages -- --ignored"]
fn control_is_damaged_natively() {
    crash::native_is_damaged_on_forgetful_disk(&Postgres::without_full_page_writes(), Kind::Ext4);
}

/// By hand, as above.
#[test]
#[ignore = "chance: cargo test -p holdfast-e2e --test full_pages -- --ignored"]
fn innodb_is_damaged_natively() {
    crash::native_is_damaged_on_forgetful_disk(&MariaDb::without_double_write(), Kind::Ext4);
}
