/* The thread of the compiled build that syncs a log: the interpreter has no part in it.
 *
 * A `Syncer` has one thread, which never touches a Python object and never needs the GIL: it calls
 * fdatasync for what was submitted last, notes what that covers, and adds to an eventfd that the
 * event loop watches. What is submitted during a sync is covered by the next one. After a failed
 * sync it never syncs again: a second fdatasync may return success for data that is gone.
 * It owns no file: who submits one keeps it open until `settle` or `close` has returned. Knows
 * nothing of RocksDB. Read next: storage.local.direct_sync, which submits, and _syncer.pyi.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

/* One sync: of `fd`, and what it covers, which is only handed back. */
struct sync {
    int fd;
    long long serial, sequence, log, length;
};

typedef struct {
    PyObject_HEAD
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t asked, idle;
    int event;               /* the eventfd, -1 once it is closed */
    int is_alive;            /* the thread is to be joined */
    /* The rest is the thread's too: under the lock. */
    int is_ending;
    int is_wanted;           /* `wanted` waits for the thread */
    int is_syncing;
    int is_told;             /* `done` or `failure` is new, and the eventfd is readable */
    int failure;             /* errno of the first sync that failed, 0 = none */
    struct sync wanted, done;
} Syncer;

static void *
run(void *argument)
{
    Syncer *self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (!self->is_wanted && !self->is_ending) pthread_cond_wait(&self->asked, &self->lock);
        if (!self->is_wanted) break;
        struct sync sync = self->wanted;
        self->is_wanted = 0;
        self->is_syncing = 1;
        pthread_mutex_unlock(&self->lock);

        int failure = fdatasync(sync.fd) < 0 ? errno : 0; /* any: it is never tried again */

        pthread_mutex_lock(&self->lock);
        self->is_syncing = 0;
        if (failure) {
            self->failure = failure;
            self->is_wanted = 0;
        } else {
            self->done = sync;
        }
        if (!self->is_told) {
            uint64_t one = 1;
            self->is_told = write(self->event, &one, sizeof one) == sizeof one;
            if (!self->is_told) abort(); /* nobody would ever hear of it; cannot happen */
        }
        if (!self->is_wanted) pthread_cond_broadcast(&self->idle);
        if (failure) break;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static int
start(Syncer *self)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    int failure = pthread_create(&self->thread, NULL, run, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failure;
}

static PyObject *
Syncer_new(PyTypeObject *type, PyObject *positional, PyObject *named)
{
    if (PyTuple_GET_SIZE(positional) || (named != NULL && PyDict_GET_SIZE(named))) {
        PyErr_SetString(PyExc_TypeError, "Syncer takes no arguments");
        return NULL;
    }
    Syncer *self = (Syncer *)type->tp_alloc(type, 0); /* all zero */
    if (self == NULL) return NULL;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->asked, NULL);
    pthread_cond_init(&self->idle, NULL);
    self->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    int failure = self->event < 0 ? errno : start(self);
    if (failure) {
        Py_DECREF(self);
        errno = failure;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    self->is_alive = 1;
    return (PyObject *)self;
}

static PyObject *
Syncer_fileno(Syncer *self, PyObject *unused)
{
    return PyLong_FromLong(self->event);
}

static PyObject *
Syncer_submit(Syncer *self, PyObject *const *arguments, Py_ssize_t count)
{
    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "submit takes fd, serial, sequence, log and length");
        return NULL;
    }
    struct sync sync;
    sync.fd = (int)PyLong_AsLong(arguments[0]);
    sync.serial = PyLong_AsLongLong(arguments[1]);
    sync.sequence = PyLong_AsLongLong(arguments[2]);
    sync.log = PyLong_AsLongLong(arguments[3]);
    sync.length = PyLong_AsLongLong(arguments[4]);
    if (PyErr_Occurred()) return NULL;
    if (!self->is_alive) {
        PyErr_SetString(PyExc_ValueError, "the syncer is closed");
        return NULL;
    }
    /* The thread holds the lock only for moments, and never waits for the GIL. */
    pthread_mutex_lock(&self->lock);
    int is_asleep = !self->failure && !self->is_syncing && !self->is_wanted;
    if (!self->failure) {
        self->wanted = sync;
        self->is_wanted = 1;
    }
    pthread_mutex_unlock(&self->lock);
    if (is_asleep) pthread_cond_signal(&self->asked);
    Py_RETURN_NONE;
}

static PyObject *
Syncer_collect(Syncer *self, PyObject *unused)
{
    pthread_mutex_lock(&self->lock);
    int is_told = self->is_told, failure = self->failure;
    struct sync done = self->done;
    if (is_told) {
        uint64_t count; /* under the lock: what the thread tells later stays in the eventfd */
        if (read(self->event, &count, sizeof count) == sizeof count) self->is_told = 0;
    }
    pthread_mutex_unlock(&self->lock);
    if (!is_told) Py_RETURN_NONE;
    if (failure) {
        errno = failure;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    return Py_BuildValue("LLLL", done.serial, done.sequence, done.log, done.length);
}

static PyObject *
Syncer_settle(Syncer *self, PyObject *unused)
{
    int failure;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    while (self->is_wanted || self->is_syncing) pthread_cond_wait(&self->idle, &self->lock);
    failure = self->failure;
    pthread_mutex_unlock(&self->lock);
    Py_END_ALLOW_THREADS
    return PyLong_FromLong(failure);
}

/* End the thread, after what it has to do; leave the eventfd as it is. */
static void
end(Syncer *self)
{
    if (!self->is_alive) return;
    self->is_alive = 0;
    Py_BEGIN_ALLOW_THREADS
    pthread_mutex_lock(&self->lock);
    self->is_ending = 1;
    pthread_cond_signal(&self->asked);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    Py_END_ALLOW_THREADS
}

static PyObject *
Syncer_close(Syncer *self, PyObject *unused)
{
    end(self);
    if (self->event >= 0) close(self->event);
    self->event = -1;
    Py_RETURN_NONE;
}

static void
Syncer_dealloc(Syncer *self)
{
    end(self);
    if (self->event >= 0) close(self->event);
    pthread_cond_destroy(&self->idle);
    pthread_cond_destroy(&self->asked);
    pthread_mutex_destroy(&self->lock);
    Py_TYPE(self)->tp_free((PyObject *)self);
}

static PyObject *
length(PyObject *unused, PyObject *file)
{
    int fd = (int)PyLong_AsLong(file);
    if (fd == -1 && PyErr_Occurred()) return NULL;
    struct stat now;
    if (fstat(fd, &now) < 0) return PyErr_SetFromErrno(PyExc_OSError);
    return PyLong_FromLongLong((long long)now.st_size);
}

static PyMethodDef Syncer_methods[] = {
    {"fileno", (PyCFunction)Syncer_fileno, METH_NOARGS,
     "Return the eventfd, readable when `collect` has something to say."},
    {"submit", (PyCFunction)(void (*)(void))Syncer_submit, METH_FASTCALL,
     "Sync a file; takes the place of what waits for the sync that runs."},
    {"collect", (PyCFunction)Syncer_collect, METH_NOARGS,
     "Return what the newest sync covers, None if there is none since; raise OSError, once."},
    {"settle", (PyCFunction)Syncer_settle, METH_NOARGS,
     "Wait until nothing is to be synced; return the errno of the sync that failed, or 0."},
    {"close", (PyCFunction)Syncer_close, METH_NOARGS,
     "Sync what was submitted, end the thread, close the eventfd. Idempotent."},
    {NULL},
};

static PyTypeObject SyncerType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "storage.local._syncer.Syncer",
    .tp_basicsize = sizeof(Syncer),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "A thread that syncs files without the interpreter.",
    .tp_new = Syncer_new,
    .tp_dealloc = (destructor)Syncer_dealloc,
    .tp_methods = Syncer_methods,
};

static PyMethodDef functions[] = {
    {"length", length, METH_O, "Return the size of an open file."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "storage.local._syncer",
    .m_doc = "The thread of the compiled build that syncs a log.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC
PyInit__syncer(void)
{
    PyObject *made = PyModule_Create(&module);
    if (made != NULL && PyModule_AddType(made, &SyncerType) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return made;
}
