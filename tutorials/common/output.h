/*
 * output.h - a file that is written beside its place and renamed when it is complete, so that
 * nobody finds half a file, and what was there stays until there is something better. A path that
 * exists and is no regular file (/dev/stdout, a pipe) is written where it is.
 */
#ifndef SAMEBITS_OUTPUT_H
#define SAMEBITS_OUTPUT_H

#include "model/error.h"

#include <stdio.h>

struct output {
    FILE *file;
    const char *path;
    char *place, *beside; /* owned: the path without links, and what is renamed to it, or NULL */
};

/* Opens it for writing; path must outlive it. Returns 0, or -1 with err set and nothing open. */
int output_open(struct output *o, const char *path, struct error *err);

/* Checks whether a path can be written, before there is anything to write; NULL can. Returns 0, or
 * -1 with err set. The file is not touched. */
int output_check(const char *path, struct error *err);

/* Closes the file and puts it in its place. Returns 0, or -1 with err set: it could not be written;
 * what was there before is there still. */
int output_keep(struct output *o, struct error *err);

/* Closes the file and removes it; a zeroed one is fine. */
void output_discard(struct output *o);

/* Writes what stdout has buffered. Returns 0, or -1 with err set when that, or anything written
 * before, failed. */
int output_flush_stdout(struct error *err);

#endif
