/*
 * error.h - one error, reported once.
 *
 * Every function that can fail returns 0 or -1 (or a pointer or NULL) and, when it fails, has
 * filled the caller's `struct error` with one line that says where, what was found and, if it
 * helps, what to do. Nobody prints on the way up; the program prints the line and exits with 2.
 */
#ifndef SAMEBITS_ERROR_H
#define SAMEBITS_ERROR_H

#ifdef __cplusplus
extern "C" {
#endif

struct error {
    char text[1024]; /* one line without a newline; longer messages are cut */
};

/*
 * Writes the message (printf format) into err, with control characters replaced by '?', because
 * names out of a damaged file end up in it. err may be NULL. Always returns -1, so that a caller
 * can write `return error_set(err, "...")`.
 */
int error_set(struct error *err, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __cplusplus
}
#endif

#endif
