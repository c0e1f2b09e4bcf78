/*
 * client.h - the other end of server.h, as small as it can be: one request, its events one by one.
 */
#ifndef SAMEBITS_CLIENT_H
#define SAMEBITS_CLIENT_H

#include "model/files/json.h"
#include "scheduler/request.h"

/* A request as a body of /v1/completions that asks for a stream: with its token ids, so that
 * nothing can be encoded otherwise. malloc'ed, or NULL: no memory. */
char *client_body(const struct request *r);

/* POSTs a body to a port of this machine. Returns the socket, from which the answer can be read up
 * to its end, or -1 with err set. */
int client_send(int port, const char *path, const char *body, struct error *err);

/* POSTs a body to a port of this machine and calls event(context, json) for each event of the
 * answer (what stands behind "data: "; not [DONE]). Returns the status of HTTP, or -1 with err set:
 * no connection, an answer that is none. */
int client_post(int port, const char *path, const char *body,
                void (*event)(void *context, const json_t *json), void *context, struct error *err);

#endif
