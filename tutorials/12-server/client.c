#include "tutorials/12-server/client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static FILE *connect_to(int port, struct error *err) {
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    FILE *f = NULL;
    if (fd < 0 || connect(fd, (struct sockaddr *)&address, sizeof address) ||
        !(f = fdopen(fd, "r+"))) {
        error_set(err, "port %d: cannot connect: %s", port, strerror(errno));
        if (fd >= 0)
            close(fd);
    }
    return f;
}

/* HTTP 1.0, so that the answer comes as it is and ends with the connection. */
static int send_request(FILE *f, const char *path, const char *body) {
    fprintf(f, "POST %s HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: %zu\r\n\r\n",
            path, strlen(body));
    fputs(body, f);
    return fflush(f);
}

int client_post(int port, const char *path, const char *body,
                void (*event)(void *context, const json_t *json), void *context,
                struct error *err) {
    char *line = NULL;
    size_t capacity = 0;
    int status = 0;
    bool in_body = false;
    FILE *f = connect_to(port, err);
    if (!f)
        return -1;
    if (send_request(f, path, body))
        error_set(err, "port %d: cannot send: %s", port, strerror(errno));
    while (getline(&line, &capacity, f) > 0) {
        if (!in_body && !status)
            status = atoi(line + strcspn(line, " "));
        in_body = in_body || !strcmp(line, "\r\n");
        json_t *json = !strncmp(line, "data: {", 7) ? json_loads(line + 6, 0, NULL) : NULL;
        if (json)
            event(context, json);
        json_decref(json);
    }
    free(line);
    fclose(f);
    return status ? status : error_set(err, "port %d: no answer", port);
}
