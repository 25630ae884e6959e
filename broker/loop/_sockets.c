/* The sockets of the compiled build: one call reads from all connections that have something, one
 * writes everything a tick has to send.
 *
 * A `Channel` is what asyncio calls a transport, for one connected stream socket; its protocol has
 * the methods of asyncio.Protocol. A `Poller` has all channels and listening sockets in an epoll set
 * of its own, whose descriptor the event loop watches. `Channel.write` only queues; `Poller.flush`
 * sends, without the GIL, so that the committer's thread goes on meanwhile. Everything is called on
 * the loop's thread. Knows nothing of MQTT. The pure build has the transports of the loop instead.
 * Read next: broker.loop.driver, which polls and flushes, and _sockets.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stddef.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#define EVENTS_MAX 1024       /* of one poll: the others follow with the next one */
#define READ_BYTES (256 << 10) /* of one connection in one poll */
#define ACCEPTS_MAX 64        /* of one listening socket in one poll */
#define PIECES_MAX 64         /* of one system call */
#define HIGH_BYTES (64 << 10) /* until set_write_buffer_limits says otherwise */

enum {
    READING = 1,        /* bytes are wanted */
    CLOSING = 2,        /* nothing more is read or queued */
    ENDING = 4,         /* connection_lost is on its way */
    SHUTTING = 8,       /* the peer is told the end once everything is sent */
    SHUT = 16,          /* it was told */
    DIRTY = 32,         /* the poller will send */
    FULL = 64,          /* pause_writing was called */
};

typedef struct {
    PyObject_HEAD
    int epoll;
    int is_expected;         /* a flush will follow without being asked for */
    Py_ssize_t dirty_count, dirty_room;
    struct Channel **dirty;
    PyObject *call_soon;     /* of the loop */
    PyObject *failed;        /* is given what a protocol raised */
    PyObject *channels;      /* set of those that are open: who else would hold them? */
    char *buffer;
} Poller;

typedef struct Channel {
    PyObject_HEAD
    Poller *poller;          /* NULL once it is over */
    PyObject *protocol;
    PyObject *peer;
    int fd;
    unsigned flags;
    uint32_t watched;        /* events that epoll watches, 0 = not in the set */
    int failure;             /* errno of the last send, 0 = none */
    /* What is queued: pieces[start..end), of the first one `sent` bytes are gone. */
    PyObject **pieces;
    Py_ssize_t start, end, room;
    size_t sent, size, high, low;
} Channel;

typedef struct {
    PyObject_HEAD
    Poller *poller;          /* NULL once it is closed */
    PyObject *accepted;      /* makes the protocol of a connection */
    PyObject *exhausted;     /* called with errno when no connection can be accepted for now */
    int fd;
    int is_watched;
} Listener;

static PyTypeObject PollerType, ChannelType, ListenerType;
static PyObject *name_data_received, *name_eof_received, *name_connection_made;
static PyObject *name_connection_lost, *name_pause_writing, *name_resume_writing, *name_finish;

static void channel_end(Channel *channel, PyObject *error);

/* Return the exception that is set, and clear it. */
static PyObject *
taken(void)
{
    PyObject *kind, *value, *trace;
    PyErr_Fetch(&kind, &value, &trace);
    PyErr_NormalizeException(&kind, &value, &trace);
    if (trace != NULL && value != NULL) PyException_SetTraceback(value, trace);
    Py_XDECREF(kind);
    Py_XDECREF(trace);
    return value;
}

/* End a connection because of the system's error number. */
static void
end_for(Channel *channel, int number)
{
    errno = number;
    PyErr_SetFromErrno(PyExc_OSError);
    PyObject *error = taken();
    channel_end(channel, error);
    Py_XDECREF(error);
}

/* Tell of an exception that nobody expects. */
static void
report(Poller *poller)
{
    PyObject *error = taken();
    PyObject *done = poller && error ? PyObject_CallOneArg(poller->failed, error) : NULL;
    if (done == NULL) PyErr_WriteUnraisable(error);
    Py_XDECREF(done);
    Py_XDECREF(error);
}

/* Call a method of a protocol. What it raises is a bug: it is told, and the connection ends. */
static PyObject *
tell(Channel *channel, PyObject *name, PyObject *argument)
{
    PyObject *protocol = channel->protocol;
    if (protocol == NULL) Py_RETURN_NONE;
    Py_INCREF(protocol);
    PyObject *arguments[2] = {protocol, argument};
    PyObject *answer = PyObject_VectorcallMethod(
        name, arguments, argument ? 2 : 1, NULL);
    if (answer == NULL) {
        report(channel->poller);
        channel_end(channel, NULL);
    }
    Py_DECREF(protocol);
    return answer;
}

/* --- what epoll watches ------------------------------------------------------------------------ */

static int
watch(Channel *channel, uint32_t wanted)
{
    if (wanted == channel->watched || channel->poller == NULL || channel->fd < 0) return 0;
    struct epoll_event event = {.events = wanted, .data.ptr = channel};
    int what = !channel->watched ? EPOLL_CTL_ADD : !wanted ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
    if (epoll_ctl(channel->poller->epoll, what, channel->fd, &event) < 0) return -1;
    channel->watched = wanted;
    return 0;
}

/* Watch what is of interest now: input unless it is paused, room for output if some is left. */
static void
watch_again(Channel *channel, int is_left)
{
    uint32_t wanted = 0;
    if (!(channel->flags & ENDING)) {
        if ((channel->flags & (READING | CLOSING)) == READING) wanted |= EPOLLIN;
        if (is_left) wanted |= EPOLLOUT;
    }
    if (watch(channel, wanted) < 0) end_for(channel, errno);
}

/* --- output ------------------------------------------------------------------------------------ */

static void
drop_output(Channel *channel)
{
    for (Py_ssize_t at = channel->start; at < channel->end; at++) Py_DECREF(channel->pieces[at]);
    PyMem_Free(channel->pieces);
    channel->pieces = NULL;
    channel->start = channel->end = channel->room = 0;
    channel->sent = channel->size = 0;
}

/* Send what is queued until the socket is full; needs no GIL and touches no object's count. Returns
 * how many bytes went; `failure` says why no more. */
static size_t
send_queued(Channel *channel)
{
    size_t gone = 0, sent = channel->sent;
    Py_ssize_t at = channel->start;
    channel->failure = 0;
    while (at < channel->end) {
        struct iovec pieces[PIECES_MAX];
        int count = 0;
        size_t asked = 0;
        for (Py_ssize_t next = at; next < channel->end && count < PIECES_MAX; next++, count++) {
            size_t skipped = count ? 0 : sent;
            pieces[count].iov_base = PyBytes_AS_STRING(channel->pieces[next]) + skipped;
            pieces[count].iov_len = (size_t)PyBytes_GET_SIZE(channel->pieces[next]) - skipped;
            asked += pieces[count].iov_len;
        }
        struct msghdr message = {.msg_iov = pieces, .msg_iovlen = (size_t)count};
        ssize_t done = count == 1 ? send(channel->fd, pieces[0].iov_base, asked, MSG_NOSIGNAL)
                                  : sendmsg(channel->fd, &message, MSG_NOSIGNAL);
        if (done < 0) {
            if (errno == EINTR) continue;
            channel->failure = errno;
            break;
        }
        gone += (size_t)done;
        if ((size_t)done < asked) {
            channel->failure = EAGAIN;
            break;
        }
        at += count;
        sent = 0;
    }
    return gone;
}

/* Settle what `send_queued` did: free what is gone, go on with what waited for it. */
static void
settle(Channel *channel, size_t gone)
{
    channel->size -= gone;
    while (channel->start < channel->end) {
        size_t rest = (size_t)PyBytes_GET_SIZE(channel->pieces[channel->start]) - channel->sent;
        if (gone < rest) {
            channel->sent += gone;
            break;
        }
        gone -= rest;
        channel->sent = 0;
        Py_DECREF(channel->pieces[channel->start++]);
    }
    int failure = channel->failure;
    if (failure && failure != EAGAIN && failure != EWOULDBLOCK) {
        end_for(channel, failure);
        return;
    }
    int is_left = channel->start < channel->end;
    if (!is_left) drop_output(channel);
    if (channel->flags & ENDING) return;
    if (is_left || channel->watched & EPOLLOUT) watch_again(channel, is_left);
    if (channel->flags & ENDING) return;
    if (!is_left && channel->flags & CLOSING) {
        channel_end(channel, NULL);
        return;
    }
    if (!is_left && (channel->flags & (SHUTTING | SHUT)) == SHUTTING) {
        channel->flags |= SHUT;
        shutdown(channel->fd, SHUT_WR);
    }
    if (!(channel->flags & FULL) && channel->size > channel->high) {
        channel->flags |= FULL;
        Py_XDECREF(tell(channel, name_pause_writing, NULL));
    } else if (channel->flags & FULL && channel->size <= channel->low) {
        channel->flags &= ~FULL;
        Py_XDECREF(tell(channel, name_resume_writing, NULL));
    }
}

/* Have the next flush send for this channel; ask for one if none is to be expected. */
static int
make_dirty(Channel *channel)
{
    Poller *poller = channel->poller;
    if (channel->flags & DIRTY || channel->watched & EPOLLOUT) return 0;
    if (poller->dirty_count == poller->dirty_room) {
        Py_ssize_t room = poller->dirty_room ? 2 * poller->dirty_room : 64;
        struct Channel **more = PyMem_Realloc(poller->dirty, (size_t)room * sizeof *more);
        if (more == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        poller->dirty = more;
        poller->dirty_room = room;
    }
    if (poller->dirty_count == 0 && !poller->is_expected) {
        PyObject *flush = PyObject_GetAttrString((PyObject *)poller, "flush");
        PyObject *handle = flush ? PyObject_CallOneArg(poller->call_soon, flush) : NULL;
        Py_XDECREF(flush);
        if (handle == NULL) return -1;
        Py_DECREF(handle);
        poller->is_expected = 1;
    }
    channel->flags |= DIRTY;
    poller->dirty[poller->dirty_count++] = (Channel *)Py_NewRef((PyObject *)channel);
    return 0;
}

/* --- the end of a channel ---------------------------------------------------------------------- */

/* Let connection_lost come soon, never from inside another method of the protocol. */
static void
channel_end(Channel *channel, PyObject *error)
{
    if (channel->flags & ENDING || channel->poller == NULL) return;
    channel->flags |= CLOSING | ENDING;
    watch(channel, 0);
    drop_output(channel);
    PyObject *finish = PyObject_GetAttr((PyObject *)channel, name_finish);
    PyObject *handle = NULL;
    if (finish != NULL) {
        handle = PyObject_CallFunctionObjArgs(
            channel->poller->call_soon, finish, error ? error : Py_None, NULL);
    }
    Py_XDECREF(finish);
    if (handle == NULL) report(channel->poller);
    Py_XDECREF(handle);
}

static PyObject *
Channel_finish(Channel *channel, PyObject *error)
{
    Poller *poller = channel->poller;
    if (poller == NULL) Py_RETURN_NONE;
    Py_INCREF(channel);
    Py_XDECREF(tell(channel, name_connection_lost, error));
    if (channel->fd >= 0) close(channel->fd);
    channel->fd = -1;
    channel->watched = 0;
    drop_output(channel);
    Py_CLEAR(channel->protocol);
    channel->poller = NULL;
    if (poller->channels != NULL && PySet_Discard(poller->channels, (PyObject *)channel) < 0) {
        report(poller);
    }
    Py_DECREF(poller);
    Py_DECREF(channel);
    Py_RETURN_NONE;
}

/* --- methods of a channel, as those of asyncio.Transport --------------------------------------- */

static PyObject *
Channel_write(Channel *channel, PyObject *data)
{
    if (!PyBytes_Check(data)) {
        /* A library may write a bytearray or a view: it is copied, it may change later. */
        data = PyBytes_FromObject(data);
        if (data == NULL) return NULL;
    } else {
        Py_INCREF(data);
    }
    if (channel->flags & (CLOSING | SHUTTING) || PyBytes_GET_SIZE(data) == 0) {
        Py_DECREF(data);
        Py_RETURN_NONE;
    }
    if (channel->end == channel->room) {
        if (channel->start > 0) {
            memmove(channel->pieces, channel->pieces + channel->start,
                    (size_t)(channel->end - channel->start) * sizeof *channel->pieces);
            channel->end -= channel->start;
            channel->start = 0;
        }
        if (channel->end == channel->room) {
            Py_ssize_t room = channel->room ? 2 * channel->room : 2;
            PyObject **more = PyMem_Realloc(channel->pieces, (size_t)room * sizeof *more);
            if (more == NULL) {
                Py_DECREF(data);
                return PyErr_NoMemory();
            }
            channel->pieces = more;
            channel->room = room;
        }
    }
    channel->pieces[channel->end++] = data;
    channel->size += (size_t)PyBytes_GET_SIZE(data);
    if (make_dirty(channel) < 0) return NULL;
    if (channel->watched & EPOLLOUT && !(channel->flags & FULL) && channel->size > channel->high) {
        channel->flags |= FULL;
        Py_XDECREF(tell(channel, name_pause_writing, NULL));
    }
    Py_RETURN_NONE;
}

static PyObject *
Channel_write_eof(Channel *channel, PyObject *unused)
{
    if (channel->flags & (CLOSING | SHUTTING)) Py_RETURN_NONE;
    channel->flags |= SHUTTING;
    if (channel->start == channel->end) {
        channel->flags |= SHUT;
        if (shutdown(channel->fd, SHUT_WR) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    }
    Py_RETURN_NONE;
}

static PyObject *
Channel_can_write_eof(Channel *channel, PyObject *unused)
{
    Py_RETURN_TRUE;
}

static PyObject *
Channel_close(Channel *channel, PyObject *unused)
{
    if (channel->flags & CLOSING) Py_RETURN_NONE;
    channel->flags |= CLOSING;
    if (channel->start == channel->end) channel_end(channel, NULL);
    else watch_again(channel, (channel->watched & EPOLLOUT) != 0);
    Py_RETURN_NONE;
}

static PyObject *
Channel_abort(Channel *channel, PyObject *unused)
{
    channel_end(channel, NULL);
    Py_RETURN_NONE;
}

static PyObject *
Channel_is_closing(Channel *channel, PyObject *unused)
{
    return PyBool_FromLong((channel->flags & CLOSING) != 0);
}

static PyObject *
Channel_pause_reading(Channel *channel, PyObject *unused)
{
    channel->flags &= ~READING;
    if (!(channel->flags & CLOSING)) watch_again(channel, (channel->watched & EPOLLOUT) != 0);
    Py_RETURN_NONE;
}

static PyObject *
Channel_resume_reading(Channel *channel, PyObject *unused)
{
    channel->flags |= READING;
    if (!(channel->flags & CLOSING)) watch_again(channel, (channel->watched & EPOLLOUT) != 0);
    Py_RETURN_NONE;
}

static PyObject *
Channel_set_write_buffer_limits(Channel *channel, PyObject *positional, PyObject *named)
{
    static char *names[] = {"high", "low", NULL};
    Py_ssize_t high = HIGH_BYTES, low = -1;
    if (!PyArg_ParseTupleAndKeywords(positional, named, "|nn", names, &high, &low)) return NULL;
    if (low < 0) low = high / 4;
    if (high < low) {
        PyErr_SetString(PyExc_ValueError, "high must be at least low, and low at least 0");
        return NULL;
    }
    channel->high = (size_t)high;
    channel->low = (size_t)low;
    Py_RETURN_NONE;
}

static PyObject *
Channel_get_write_buffer_size(Channel *channel, PyObject *unused)
{
    return PyLong_FromSize_t(channel->size);
}

static PyObject *
Channel_get_extra_info(Channel *channel, PyObject *positional)
{
    const char *name;
    PyObject *other = Py_None;
    if (!PyArg_ParseTuple(positional, "s|O", &name, &other)) return NULL;
    return Py_NewRef(strcmp(name, "peername") == 0 && channel->peer ? channel->peer : other);
}

static PyObject *
Channel_get_protocol(Channel *channel, PyObject *unused)
{
    return Py_NewRef(channel->protocol ? channel->protocol : Py_None);
}

static PyObject *
Channel_set_protocol(Channel *channel, PyObject *protocol)
{
    if (channel->poller != NULL) Py_XSETREF(channel->protocol, Py_NewRef(protocol));
    Py_RETURN_NONE;
}

static int
Channel_traverse(Channel *channel, visitproc visit, void *arg)
{
    Py_VISIT(channel->poller);
    Py_VISIT(channel->protocol);
    return 0;
}

static int
Channel_clear(Channel *channel)
{
    Py_CLEAR(channel->protocol);
    return 0;
}

static void
Channel_dealloc(Channel *channel)
{
    PyObject_GC_UnTrack(channel);
    if (channel->fd >= 0) close(channel->fd);
    drop_output(channel);
    Py_CLEAR(channel->protocol);
    Py_CLEAR(channel->peer);
    Py_CLEAR(channel->poller);
    PyObject_GC_Del(channel);
}

static PyMethodDef Channel_methods[] = {
    {"write", (PyCFunction)Channel_write, METH_O, "Queue bytes for the next flush."},
    {"write_eof", (PyCFunction)Channel_write_eof, METH_NOARGS,
     "Tell the peer that nothing follows, once everything is sent."},
    {"can_write_eof", (PyCFunction)Channel_can_write_eof, METH_NOARGS, "Return True."},
    {"close", (PyCFunction)Channel_close, METH_NOARGS, "Close once everything is sent."},
    {"abort", (PyCFunction)Channel_abort, METH_NOARGS, "Close; what is not sent yet is lost."},
    {"is_closing", (PyCFunction)Channel_is_closing, METH_NOARGS, "Was it closed or lost?"},
    {"pause_reading", (PyCFunction)Channel_pause_reading, METH_NOARGS, "Read no more for now."},
    {"resume_reading", (PyCFunction)Channel_resume_reading, METH_NOARGS, "Read again."},
    {"set_write_buffer_limits", (PyCFunction)(void (*)(void))Channel_set_write_buffer_limits,
     METH_VARARGS | METH_KEYWORDS, "Say when pause_writing and resume_writing are called."},
    {"get_write_buffer_size", (PyCFunction)Channel_get_write_buffer_size, METH_NOARGS,
     "Return how many bytes are queued."},
    {"get_extra_info", (PyCFunction)Channel_get_extra_info, METH_VARARGS,
     "Return the address of the peer for `peername`."},
    {"get_protocol", (PyCFunction)Channel_get_protocol, METH_NOARGS, "Return the protocol."},
    {"set_protocol", (PyCFunction)Channel_set_protocol, METH_O, "Set the protocol."},
    {"_finish", (PyCFunction)Channel_finish, METH_O, "Call connection_lost, then close."},
    {NULL},
};

static PyTypeObject ChannelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "broker.loop._sockets.Channel",
    .tp_basicsize = sizeof(Channel),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A connected stream socket, with the methods of asyncio.Transport.",
    .tp_dealloc = (destructor)Channel_dealloc,
    .tp_traverse = (traverseproc)Channel_traverse,
    .tp_clear = (inquiry)Channel_clear,
    .tp_methods = Channel_methods,
};

/* --- the poller -------------------------------------------------------------------------------- */

static PyObject *
address_of(const struct sockaddr_storage *address, socklen_t size)
{
    if (address->ss_family == AF_INET) {
        const struct sockaddr_in *four = (const struct sockaddr_in *)address;
        char text[INET_ADDRSTRLEN];
        if (!inet_ntop(AF_INET, &four->sin_addr, text, sizeof text)) Py_RETURN_NONE;
        return Py_BuildValue("(si)", text, (int)ntohs(four->sin_port));
    }
    if (address->ss_family == AF_INET6) {
        const struct sockaddr_in6 *six = (const struct sockaddr_in6 *)address;
        char text[NI_MAXHOST];
        if (getnameinfo((const struct sockaddr *)address, size, text, sizeof text, NULL, 0,
                        NI_NUMERICHOST) != 0) {
            Py_RETURN_NONE;
        }
        return Py_BuildValue("(siII)", text, (int)ntohs(six->sin6_port),
                             (unsigned)ntohl(six->sin6_flowinfo), (unsigned)six->sin6_scope_id);
    }
    return PyUnicode_FromString("");
}

/* Make the channel of a connected socket, which is closed if that fails. */
static int
take_in(Poller *poller, int fd, PyObject *accepted, PyObject *peer)
{
    PyObject *protocol = PyObject_CallNoArgs(accepted);
    Channel *channel = protocol ? PyObject_GC_New(Channel, &ChannelType) : NULL;
    if (channel == NULL) {
        Py_XDECREF(protocol);
        close(fd);
        return -1;
    }
    memset((char *)channel + offsetof(Channel, poller), 0,
           sizeof *channel - offsetof(Channel, poller));
    channel->poller = (Poller *)Py_NewRef((PyObject *)poller);
    channel->protocol = protocol;
    channel->peer = Py_NewRef(peer);
    channel->fd = fd;
    channel->flags = READING;
    channel->high = HIGH_BYTES;
    channel->low = HIGH_BYTES / 4;
    PyObject_GC_Track(channel);
    int status = PySet_Add(poller->channels, (PyObject *)channel);
    if (status == 0) {
        PyObject *answer = tell(channel, name_connection_made, (PyObject *)channel);
        Py_XDECREF(answer);
        watch_again(channel, 0);
        Py_CLEAR(channel->peer); /* who wants it has it */
    }
    Py_DECREF(channel);
    return status;
}

static void
accept_all(Listener *listener)
{
    Poller *poller = listener->poller;
    for (int count = 0; count < ACCEPTS_MAX && listener->poller != NULL; count++) {
        struct sockaddr_storage address;
        socklen_t size = sizeof address;
        int fd = accept4(listener->fd, (struct sockaddr *)&address, &size,
                         SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EAGAIN || errno == EWOULDBLOCK) return;
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                PyObject *number = PyLong_FromLong(errno);
                epoll_ctl(poller->epoll, EPOLL_CTL_DEL, listener->fd, NULL);
                listener->is_watched = 0;
                PyObject *done = number ? PyObject_CallOneArg(listener->exhausted, number) : NULL;
                if (done == NULL) report(poller);
                Py_XDECREF(done);
                Py_XDECREF(number);
                return;
            }
            continue; /* this one connection is gone already */
        }
        if (address.ss_family != AF_UNIX) {
            int on = 1; /* one write per tick is as large as it can be */
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
        }
        PyObject *peer = address_of(&address, size);
        if (peer == NULL) {
            close(fd);
        } else if (take_in(poller, fd, listener->accepted, peer) == 0) {
            Py_DECREF(peer);
            continue;
        }
        Py_XDECREF(peer);
        report(poller);
    }
}

static void
read_some(Channel *channel)
{
    Poller *poller = channel->poller;
    ssize_t got = recv(channel->fd, poller->buffer, READ_BYTES, 0);
    if (got > 0) {
        PyObject *data = PyBytes_FromStringAndSize(poller->buffer, got);
        if (data == NULL) {
            report(poller);
            channel_end(channel, NULL);
            return;
        }
        Py_XDECREF(tell(channel, name_data_received, data));
        Py_DECREF(data);
        return;
    }
    if (got == 0) {
        PyObject *answer = tell(channel, name_eof_received, NULL);
        int stays = answer != NULL && PyObject_IsTrue(answer) == 1;
        Py_XDECREF(answer);
        if (!stays) {
            Py_XDECREF(Channel_close(channel, NULL));
        } else {
            Py_XDECREF(Channel_pause_reading(channel, NULL));
        }
        return;
    }
    if (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR) return;
    end_for(channel, errno);
}

static PyObject *
Poller_poll(Poller *poller, PyObject *unused)
{
    struct epoll_event events[EVENTS_MAX];
    poller->is_expected = 1;
    int count = epoll_wait(poller->epoll, events, EVENTS_MAX, 0);
    if (count < 0) {
        if (errno == EINTR) return PyLong_FromLong(0);
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    /* A protocol may end other channels than its own. */
    for (int at = 0; at < count; at++) Py_INCREF((PyObject *)events[at].data.ptr);
    for (int at = 0; at < count; at++) {
        PyObject *found = events[at].data.ptr;
        uint32_t what = events[at].events;
        if (Py_IS_TYPE(found, &ListenerType)) {
            accept_all((Listener *)found);
        } else {
            Channel *channel = (Channel *)found;
            if (what & (EPOLLOUT | EPOLLHUP | EPOLLERR) && channel->watched & EPOLLOUT) {
                settle(channel, send_queued(channel));
            }
            if (what & (EPOLLIN | EPOLLHUP | EPOLLERR) && channel->watched & EPOLLIN) {
                read_some(channel);
            }
        }
        Py_DECREF(found);
    }
    return PyLong_FromLong(count);
}

static PyObject *
Poller_expect(Poller *poller, PyObject *unused)
{
    poller->is_expected = 1;
    Py_RETURN_NONE;
}

static PyObject *
Poller_flush(Poller *poller, PyObject *unused)
{
    poller->is_expected = 0;
    Py_ssize_t count = poller->dirty_count;
    if (count == 0) Py_RETURN_NONE;
    struct Channel **dirty = poller->dirty;
    size_t few[256], *gone = few;
    if (count > 256) {
        gone = PyMem_Malloc((size_t)count * sizeof *gone);
        if (gone == NULL) return PyErr_NoMemory();
    }
    poller->dirty = NULL;
    poller->dirty_count = poller->dirty_room = 0;
    Py_BEGIN_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < count; at++) {
        Channel *channel = dirty[at];
        gone[at] = 0;
        channel->failure = 0;
        if (channel->fd >= 0 && !(channel->flags & ENDING)) gone[at] = send_queued(channel);
    }
    Py_END_ALLOW_THREADS
    for (Py_ssize_t at = 0; at < count; at++) {
        Channel *channel = dirty[at];
        channel->flags &= ~DIRTY;
        if (channel->fd >= 0 && !(channel->flags & ENDING)) settle(channel, gone[at]);
        Py_DECREF(channel);
    }
    if (gone != few) PyMem_Free(gone);
    if (poller->dirty == NULL) {
        poller->dirty = dirty; /* its memory serves again */
        poller->dirty_room = count;
    } else {
        PyMem_Free(dirty);
    }
    Py_RETURN_NONE;
}

static PyObject *
Poller_listen(Poller *poller, PyObject *positional)
{
    int fd;
    PyObject *accepted, *exhausted;
    if (!PyArg_ParseTuple(positional, "iOO", &fd, &accepted, &exhausted)) return NULL;
    Listener *listener = PyObject_GC_New(Listener, &ListenerType);
    if (listener == NULL) return NULL;
    listener->poller = (Poller *)Py_NewRef((PyObject *)poller);
    listener->accepted = Py_NewRef(accepted);
    listener->exhausted = Py_NewRef(exhausted);
    listener->fd = fd;
    listener->is_watched = 0;
    PyObject_GC_Track(listener);
    PyObject *done = PyObject_CallMethod((PyObject *)listener, "resume", NULL);
    if (done == NULL || PySet_Add(poller->channels, (PyObject *)listener) < 0) {
        Py_XDECREF(done);
        Py_DECREF(listener);
        return NULL;
    }
    Py_DECREF(done);
    return (PyObject *)listener;
}

static PyObject *
Poller_fileno(Poller *poller, PyObject *unused)
{
    return PyLong_FromLong(poller->epoll);
}

static PyObject *
Poller_new(PyTypeObject *type, PyObject *positional, PyObject *named)
{
    PyObject *call_soon, *failed;
    if (!PyArg_ParseTuple(positional, "OO", &call_soon, &failed)) return NULL;
    Poller *poller = (Poller *)type->tp_alloc(type, 0);
    if (poller == NULL) return NULL;
    poller->epoll = epoll_create1(EPOLL_CLOEXEC);
    if (poller->epoll < 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        Py_DECREF(poller);
        return NULL;
    }
    poller->call_soon = Py_NewRef(call_soon);
    poller->failed = Py_NewRef(failed);
    poller->channels = PySet_New(NULL);
    poller->buffer = PyMem_Malloc(READ_BYTES);
    if (poller->channels == NULL || poller->buffer == NULL) {
        Py_DECREF(poller);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    return (PyObject *)poller;
}

static int
Poller_traverse(Poller *poller, visitproc visit, void *arg)
{
    Py_VISIT(poller->call_soon);
    Py_VISIT(poller->failed);
    Py_VISIT(poller->channels);
    for (Py_ssize_t at = 0; at < poller->dirty_count; at++) Py_VISIT(poller->dirty[at]);
    return 0;
}

static int
Poller_clear(Poller *poller)
{
    Py_CLEAR(poller->call_soon);
    Py_CLEAR(poller->failed);
    Py_CLEAR(poller->channels);
    Py_ssize_t count = poller->dirty_count;
    poller->dirty_count = 0;
    for (Py_ssize_t at = 0; at < count; at++) Py_DECREF(poller->dirty[at]);
    return 0;
}

static void
Poller_dealloc(Poller *poller)
{
    PyObject_GC_UnTrack(poller);
    Poller_clear(poller);
    PyMem_Free(poller->dirty);
    PyMem_Free(poller->buffer);
    if (poller->epoll >= 0) close(poller->epoll);
    Py_TYPE(poller)->tp_free((PyObject *)poller);
}

static PyMethodDef Poller_methods[] = {
    {"fileno", (PyCFunction)Poller_fileno, METH_NOARGS,
     "Return the descriptor that is readable while `poll` would find something."},
    {"listen", (PyCFunction)Poller_listen, METH_VARARGS,
     "Accept the connections of a listening socket, which stays the caller's."},
    {"poll", (PyCFunction)Poller_poll, METH_NOARGS,
     "Accept, read and go on writing where that is possible; return how many sockets had news."},
    {"expect", (PyCFunction)Poller_expect, METH_NOARGS, "Promise a flush."},
    {"flush", (PyCFunction)Poller_flush, METH_NOARGS, "Send what was queued."},
    {NULL},
};

static PyTypeObject PollerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "broker.loop._sockets.Poller",
    .tp_basicsize = sizeof(Poller),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Poller(call_soon, failed): the sockets of a process.",
    .tp_new = Poller_new,
    .tp_dealloc = (destructor)Poller_dealloc,
    .tp_traverse = (traverseproc)Poller_traverse,
    .tp_clear = (inquiry)Poller_clear,
    .tp_methods = Poller_methods,
};

/* --- listening sockets ------------------------------------------------------------------------- */

static PyObject *
Listener_resume(Listener *listener, PyObject *unused)
{
    if (listener->is_watched || listener->poller == NULL) Py_RETURN_NONE;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = listener};
    if (epoll_ctl(listener->poller->epoll, EPOLL_CTL_ADD, listener->fd, &event) < 0) {
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    listener->is_watched = 1;
    Py_RETURN_NONE;
}

static PyObject *
Listener_close(Listener *listener, PyObject *unused)
{
    Poller *poller = listener->poller;
    if (poller == NULL) Py_RETURN_NONE;
    if (listener->is_watched) epoll_ctl(poller->epoll, EPOLL_CTL_DEL, listener->fd, NULL);
    listener->is_watched = 0;
    listener->poller = NULL;
    Py_INCREF(listener);
    int status = poller->channels ? PySet_Discard(poller->channels, (PyObject *)listener) : 0;
    Py_DECREF(listener);
    Py_DECREF(poller);
    if (status < 0) return NULL;
    Py_RETURN_NONE;
}

static int
Listener_traverse(Listener *listener, visitproc visit, void *arg)
{
    Py_VISIT(listener->poller);
    Py_VISIT(listener->accepted);
    Py_VISIT(listener->exhausted);
    return 0;
}

static int
Listener_clear(Listener *listener)
{
    Py_CLEAR(listener->accepted);
    Py_CLEAR(listener->exhausted);
    return 0;
}

static void
Listener_dealloc(Listener *listener)
{
    PyObject_GC_UnTrack(listener);
    Listener_clear(listener);
    Py_CLEAR(listener->poller);
    PyObject_GC_Del(listener);
}

static PyMethodDef Listener_methods[] = {
    {"resume", (PyCFunction)Listener_resume, METH_NOARGS, "Accept again after `exhausted`."},
    {"close", (PyCFunction)Listener_close, METH_NOARGS, "Accept no more. Idempotent."},
    {NULL},
};

static PyTypeObject ListenerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "broker.loop._sockets.Listener",
    .tp_basicsize = sizeof(Listener),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_doc = "A listening socket whose connections become channels.",
    .tp_dealloc = (destructor)Listener_dealloc,
    .tp_traverse = (traverseproc)Listener_traverse,
    .tp_clear = (inquiry)Listener_clear,
    .tp_methods = Listener_methods,
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "broker.loop._sockets",
    .m_doc = "The sockets of the compiled build.",
    .m_size = -1,
};

PyMODINIT_FUNC
PyInit__sockets(void)
{
    struct { PyObject **place; const char *text; } names[] = {
        {&name_data_received, "data_received"},   {&name_eof_received, "eof_received"},
        {&name_connection_made, "connection_made"}, {&name_connection_lost, "connection_lost"},
        {&name_pause_writing, "pause_writing"},   {&name_resume_writing, "resume_writing"},
        {&name_finish, "_finish"},
    };
    for (size_t at = 0; at < sizeof names / sizeof *names; at++) {
        *names[at].place = PyUnicode_InternFromString(names[at].text);
        if (*names[at].place == NULL) return NULL;
    }
    PyObject *made = PyModule_Create(&module);
    if (made == NULL) return NULL;
    if (PyModule_AddType(made, &PollerType) < 0 || PyModule_AddType(made, &ChannelType) < 0 ||
        PyModule_AddType(made, &ListenerType) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
