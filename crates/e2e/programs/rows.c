/* Commits rows to a database one by one, and says so after each commit, as the script of workload/sqlite.rs does.
 * rows DATABASE JOURNAL-MODE [ROWS] */
#include <fcntl.h>
#include <sqlite3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static sqlite3 *db;

static void run(const char *text) {
    char *error = NULL;
    int result;
    /* Who changes the journal's kind beside a writer is told at once, whatever the timeout. */
    for (int times = 0; (result = sqlite3_exec(db, text, NULL, NULL, &error)) == SQLITE_BUSY && times < 2000; times++)
        usleep(10000);
    if (result == SQLITE_OK) return;
    fprintf(stderr, "%s: %s\n", text, error);
    exit(1);
}

int main(int count, char **arguments) {
    if (count < 3 || sqlite3_open(arguments[1], &db)) return 2;
    sqlite3_busy_timeout(db, 20000);
    char text[200];
    snprintf(text, sizeof text, "PRAGMA journal_mode=%s", arguments[2]);
    run(text);
    run("PRAGMA synchronous=FULL");
    long rows = count > 3 ? atol(arguments[3]) : -1;
    sqlite3_stmt *insert;
    if (sqlite3_prepare_v2(db, "INSERT INTO item VALUES((SELECT 1 + ifnull(max(id), 0) FROM item), NULL)", -1, &insert, NULL)) return 3;
    for (long row = 1; rows < 0 || row <= rows; row++) {
        run("BEGIN IMMEDIATE");
        if (sqlite3_step(insert) != SQLITE_DONE || sqlite3_reset(insert)) return 4;
        long id = sqlite3_last_insert_rowid(db);
        snprintf(text, sizeof text, "UPDATE item SET payload = printf('%%0600d', %ld) WHERE id = %ld", id, id);
        run(text);
        run("UPDATE total SET items = items + 1");
        run("COMMIT");
        int bytes = snprintf(text, sizeof text, "ack %ld\n", id);
        if (write(1, text, bytes) != bytes) return 5;
    }
    return sqlite3_finalize(insert) || sqlite3_close(db);
}
