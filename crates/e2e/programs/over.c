// Writes over the beginning of a file by stdio, and syncs nothing.
#include <stdio.h>

int main(int argc, char **argv) {
    FILE *file = argc == 2 ? fopen(argv[1], "r+") : NULL;
    return !file || fputs("NEWER", file) < 0 || fclose(file);
}
