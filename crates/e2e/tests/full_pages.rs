//! PostgreSQL with `full_page_writes=off`, and InnoDB without its double write: they take for
//! granted that a page is written as a whole. On a disk that tears pages in power cuts they are
//! damaged natively. Under Holdfast a write is there as a whole or not at all: every page has its
//! checksum and every acknowledged row is there. Cuts at random rarely meet a page between two
//! flushes, so the disk is also asked to lose its power in the midst of one.

use holdfast_e2e::crash;
use holdfast_e2e::disk::Kind;
use holdfast_e2e::workload::mariadb::MariaDb;
use holdfast_e2e::workload::postgres::Postgres;
use holdfast_forgetful::Page;

#[test]
fn survives_power_cuts_on_ext4() {
    crash::survives_forgetful_disk(&Postgres::without_full_page_writes(), Kind::Ext4);
}

#[test]
fn innodb_survives_power_cuts_on_ext4() {
    crash::survives_forgetful_disk(&MariaDb::without_double_write(), Kind::Ext4);
}

/// Its index pages, by their type.
const OF_INNODB: Page = Page { bytes: 16384, mark_at: 24, mark: [0x45, 0xbf] };

/// By their size and the version of their layout.
const OF_POSTGRES: Page = Page { bytes: 8192, mark_at: 18, mark: [4, 32] };

#[test]
fn innodb_survives_torn_pages() {
    crash::survives_a_torn_page(&MariaDb::without_double_write(), OF_INNODB);
}

#[test]
fn control_innodb_is_damaged_by_torn_pages() {
    crash::native_is_damaged_by_a_torn_page(&MariaDb::without_double_write(), OF_INNODB);
}

#[test]
fn control_innodb_with_its_double_write_survives_torn_pages() {
    crash::native_survives_a_torn_page(&MariaDb::new(), OF_INNODB);
}

#[test]
fn postgres_survives_torn_pages() {
    crash::survives_a_torn_page(&Postgres::without_full_page_writes(), OF_POSTGRES);
}

#[test]
fn control_postgres_is_damaged_by_torn_pages() {
    crash::native_is_damaged_by_a_torn_page(&Postgres::without_full_page_writes(), OF_POSTGRES);
}
