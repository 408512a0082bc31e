// A small fake of the CUDA driver, for tests: the real calls of the library, with threads as streams.
//
// It is stricter than a driver in order to find faults: a queued operation that touches freed memory, a free of an unknown address, an
// event recorded on a capturing stream, and a call forbidden by a running capture count as violations. It does not model speed.
//
// A stream executes its operations in order on its own thread, each after a seeded random delay, copies in two halves, so that a
// missing wait shows. The kernels are those of src/device/cuda/kernels.cu, compiled as C and run over the whole grid.
//
// Environment: FAKE_CUDA_INIT (the result of cuInit), FAKE_CUDA_DEVICES (their number), FAKE_CUDA_REPORT (a file for the balance at exit).
// FAKE_VERSION is chosen at compile time: 12040 lacks cuCtxRecordEvent. Tests control it with the functions fake...() below.

#define _GNU_SOURCE
#include <math.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// ---- the kernels, as C ----------------------------------------------------------------------------------------------------------

static __thread struct { uint64_t thread, threads, row, rows; } here;

static inline uint32_t float_bits(float x) { uint32_t bits; memcpy(&bits, &x, 4); return bits; }
static inline float bits_float(uint32_t bits) { float x; memcpy(&x, &bits, 4); return x; }
static inline uint64_t double_bits(double x) { uint64_t bits; memcpy(&bits, &x, 8); return bits; }
static inline double bits_double(uint64_t bits) { double x; memcpy(&x, &bits, 8); return x; }

// To nearest, ties to even; never called with NaN.
static inline uint16_t half_bits(float x) {
    uint32_t bits = float_bits(x), sign = bits >> 16 & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x477ff000) // 65520 and more
        return sign | 0x7c00;
    if (size < 0x38800000) // below the least normal: whole steps of 2^-24
        return sign | (uint16_t)rintf(bits_float(size) * 16777216.0f);
    size += 0xfff + (size >> 13 & 1);
    return sign | (size - (112u << 23)) >> 13;
}

static inline float half_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000) << 16, power = half >> 10 & 0x1f, fraction = half & 0x3ff;
    if (power == 0)
        return bits_float(sign | float_bits((float)fraction / 16777216.0f));
    return bits_float(sign | (power == 31 ? 255u : power + 112) << 23 | fraction << 13);
}

#define BOWSTRING_HOST
#define KERNEL static void
#define INLINE static inline
#define THREAD here.thread
#define THREADS here.threads
#define ROW here.row
#define ROWS here.rows
#define FMA(x, scale, bias) fmaf(x, scale, bias)
#define FLOAT_BITS(x) float_bits(x)
#define BITS_FLOAT(x) bits_float(x)
#define DOUBLE_BITS(x) double_bits(x)
#define BITS_DOUBLE(x) bits_double(x)
#define HALF_BITS(bits, x) ((bits) = half_bits(x))
#define HALF_FLOAT(x, bits) ((x) = half_float(bits))
#define STORE2(to, a, b) memcpy(to, (uint32_t[2]){a, b}, 8)
#define STORE4(to, a, b, c, d) memcpy(to, (uint32_t[4]){a, b, c, d}, 16)
#define UNROLL
#include "kernels.cu"

// ---- errors, by the driver's numbers --------------------------------------------------------------------------------------------

enum {
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201, INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, CAPTURE_UNSUPPORTED = 900,
};

static const struct { int code; const char *name, *text; } ERRORS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {34, "CUDA_ERROR_STUB_LIBRARY", "CUDA driver is a stub library"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing"},
};

// ---- state: one lock, one condition ---------------------------------------------------------------------------------------------

typedef struct Event { long recorded, done; int destroyed; } Event;
typedef struct Context { int ordinal, retained; } Context;
typedef struct { const char *name, *signature; void (*run)(void **); } Kernel;

typedef struct Op {
    enum { COPY, RECORD, WAIT, LAUNCH, CALL } what;
    struct Op *next;
    void *to;
    const void *from;
    size_t bytes;
    int to_device, from_device;
    Event *event;
    long turn;
    int *together; // of cuCtxRecordEvent: streams that have not arrived yet
    const Kernel *kernel;
    unsigned grid[2], block;
    char values[16][8];
    int parameters;
    void (*call)(void *);
    void *argument;
} Op;

typedef struct Stream {
    struct Stream *next;
    Context *context;
    Op *first, **last;
    int busy, held, destroyed, capturing; // capturing: 1 active, 2 invalidated
    uint64_t dice;
    pthread_t thread;
} Stream;

typedef struct Block { struct Block *next; char *at; size_t bytes; int device; } Block;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static Stream *streams, *legacy;
static Block *blocks;
static Context contexts[8];
static int initialised, captures, sticky;
static uint64_t seed = 1, made;
static unsigned longest = 300; // of a delay, in microseconds
// Objects not yet returned; then faults of the caller.
static struct { long device, host, events, streams, modules, contexts, violations, pageable; } balance;
static __thread Context *stack[16];
static __thread int depth;
static __thread int capture_mode; // 0 global, 1 thread-local, 2 relaxed
static __thread Stream *own;
static __thread int exempt; // calls of this thread neither count nor fail
static long totals[2];      // allocations of device and of page-locked memory, ever

static uint64_t roll(uint64_t *dice) {
    uint64_t z = *dice += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

static void violation(const char *what) {
    balance.violations++;
    fprintf(stderr, "fake CUDA: violation: %s\n", what);
}

// ---- the n-th call that fails ---------------------------------------------------------------------------------------------------

static struct { char function[64]; long nth; int code; } failing;
static long calls, matching;

static int planned(const char *function) {
    if (exempt)
        return OK;
    calls++;
    if (!failing.code || (strcmp(failing.function, "*") && strcmp(failing.function, function)))
        return OK;
    return ++matching == failing.nth ? failing.code : OK;
}

static int device_count(void) {
    const char *text = getenv("FAKE_CUDA_DEVICES");
    int count = text ? atoi(text) : 1;
    return count < 0 ? 0 : count > 8 ? 8 : count;
}

#define API __attribute__((visibility("default"))) int
// Every function runs under the lock; its result is returned through `leave`.
#define LEAVE(code) do { int code_ = (code); pthread_mutex_unlock(&lock); return code_; } while (0)
#define ENTER_ANY int planned_ = OK; (void)planned_; pthread_mutex_lock(&lock); planned_ = planned(__func__)
#define ENTER ENTER_ANY; if (!initialised) LEAVE(NOT_INITIALIZED); if (planned_) LEAVE(planned_)
// Functions that release something do so even if they then report a failure, as a driver does with an earlier one.
#define ENTER_BACK ENTER_ANY; if (!initialised) LEAVE(NOT_INITIALIZED)
#define BOUND if (!depth || !stack[depth - 1] || !stack[depth - 1]->retained) LEAVE(INVALID_CONTEXT)
// A capture in the global mode, in any thread, is ended by such a call from a thread that did not request the relaxed mode.
#define UNSAFE_IN_CAPTURE if (captures && capture_mode != 2) { \
        for (Stream *s = streams; s; s = s->next) if (s->capturing) s->capturing = 2; \
        violation(__func__); LEAVE(CAPTURE_UNSUPPORTED); }

// ---- memory ---------------------------------------------------------------------------------------------------------------------

static Block **find(const void *at, size_t bytes, int device) {
    for (Block **b = &blocks; *b; b = &(*b)->next)
        if ((*b)->device == device && (char *)at >= (*b)->at && (char *)at + bytes <= (*b)->at + (*b)->bytes)
            return b;
    return NULL;
}

static int take(void **out, size_t bytes, int device) {
    Block *block = calloc(1, sizeof *block);
    if (!bytes || bytes > (size_t)1 << 33 || posix_memalign((void **)&block->at, device ? 512 : 4096, bytes)) {
        free(block);
        return bytes ? OUT_OF_MEMORY : INVALID_VALUE;
    }
    memset(block->at, 0xDD, bytes);
    *block = (Block){blocks, block->at, bytes, device};
    blocks = block;
    *out = block->at;
    ++*(device ? &balance.device : &balance.host);
    totals[!device]++;
    return OK;
}

static int give(void *at, int device) {
    Block **b = find(at, 0, device);
    if (!b || (*b)->at != at) {
        violation("a free of what is not there");
        return INVALID_VALUE;
    }
    Block *block = *b;
    *b = block->next;
    --*(device ? &balance.device : &balance.host);
    memset(block->at, 0xDB, block->bytes);
    free(block->at);
    free(block);
    return OK;
}

// ---- streams --------------------------------------------------------------------------------------------------------------------

static void wait_a_moment(Stream *s) {
    uint64_t dice = roll(&s->dice);
    pthread_mutex_unlock(&lock);
    if (longest && dice % 4)
        usleep(dice >> 8 & 0xffff ? (dice >> 8) % longest : 0);
    pthread_mutex_lock(&lock);
}

static int touches(const Op *op) {
    if ((op->to_device && !find(op->to, op->bytes, 1)) || (op->from_device && !find(op->from, op->bytes, 1)))
        return 0;
    return 1;
}

// Called with the lock held; releases it while it waits or works.
static void execute(Stream *s, Op *op) {
    if (op->what == WAIT) {
        while (op->event->done < op->turn)
            pthread_cond_wait(&changed, &lock);
    } else if (op->what == RECORD) {
        if (!op->together || --*op->together == 0) {
            if (op->event->done < op->turn)
                op->event->done = op->turn;
            free(op->together);
        }
    } else if (op->what == COPY) {
        for (int half = 0; half < 2; half++) {
            wait_a_moment(s);
            size_t from = half ? op->bytes / 2 : 0, to = half ? op->bytes : op->bytes / 2;
            if (!touches(op)) {
                violation("a copy touches memory that was freed");
                sticky = ILLEGAL_ADDRESS;
                return;
            }
            memcpy((char *)op->to + from, (const char *)op->from + from, to - from);
        }
    } else if (op->what == CALL) {
        wait_a_moment(s);
        pthread_mutex_unlock(&lock);
        op->call(op->argument);
        pthread_mutex_lock(&lock);
    } else {
        void *parameters[16];
        for (int i = 0; i < op->parameters; i++)
            parameters[i] = op->values[i];
        for (int i = 0; i < 2; i++) {
            void *at;
            memcpy(&at, op->values[i], 8);
            if (!find(at, 1, 1)) {
                violation("a kernel touches memory that was freed");
                sticky = ILLEGAL_ADDRESS;
                return;
            }
        }
        for (unsigned row = 0; row < op->grid[1]; row++)
            for (uint64_t thread = 0; thread < (uint64_t)op->grid[0] * op->block; thread++) {
                here.thread = thread, here.threads = (uint64_t)op->grid[0] * op->block;
                here.row = row, here.rows = op->grid[1];
                op->kernel->run(parameters);
            }
    }
}

static void *work(void *of) {
    Stream *s = of;
    pthread_mutex_lock(&lock);
    for (;;) {
        while ((!s->first || s->held) && !(s->destroyed && !s->first))
            pthread_cond_wait(&changed, &lock);
        if (!s->first)
            break;
        Op *op = s->first;
        s->busy = 1;
        wait_a_moment(s);
        execute(s, op);
        s->first = op->next;
        if (!s->first)
            s->last = &s->first;
        s->busy = 0;
        free(op);
        pthread_cond_broadcast(&changed);
    }
    pthread_mutex_unlock(&lock);
    return NULL;
}

static Stream *new_stream(Context *context) {
    Stream *s = calloc(1, sizeof *s);
    *s = (Stream){.next = streams, .context = context, .dice = seed * 1000003 + ++made};
    s->last = &s->first;
    streams = s;
    if (pthread_create(&s->thread, NULL, work, s))
        abort();
    pthread_detach(s->thread);
    return s;
}

// Returns the stream of a handle; NULL if there is none, which is a fault of the caller.
static Stream *stream_of(void *handle) {
    if ((uintptr_t)handle < 2)
        return legacy ? legacy : (legacy = new_stream(stack[depth - 1]));
    if ((uintptr_t)handle == 2)
        return own ? own : (own = new_stream(stack[depth - 1]));
    for (Stream *s = streams; s; s = s->next)
        if (s == handle && !s->destroyed)
            return s;
    violation("a stream that is not there");
    return NULL;
}

static Op *append(Stream *s, Op op) {
    Op *copy = malloc(sizeof *copy);
    *copy = op;
    copy->next = NULL;
    *s->last = copy;
    s->last = &copy->next;
    pthread_cond_broadcast(&changed);
    return copy;
}

static void drain(Stream *s) {
    while (s->first)
        pthread_cond_wait(&changed, &lock);
}

// ---- devices and contexts -------------------------------------------------------------------------------------------------------

API cuInit(unsigned flags) {
    ENTER_ANY;
    const char *text = getenv("FAKE_CUDA_INIT");
    int code = planned_ ? planned_ : text ? atoi(text) : flags ? INVALID_VALUE : device_count() ? OK : NO_DEVICE;
    initialised = initialised || code == OK;
    LEAVE(code);
}

API cuDriverGetVersion(int *version) {
    ENTER_ANY;
    *version = FAKE_VERSION;
    LEAVE(planned_);
}

API cuGetErrorName(int code, const char **name) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code)
            return *name = ERRORS[i].name, OK;
    return *name = NULL, INVALID_VALUE;
}

API cuGetErrorString(int code, const char **text) {
    for (size_t i = 0; i < sizeof ERRORS / sizeof *ERRORS; i++)
        if (ERRORS[i].code == code)
            return *text = ERRORS[i].text, OK;
    return *text = NULL, INVALID_VALUE;
}

API cuDeviceGetCount(int *count) { ENTER; *count = device_count(); LEAVE(OK); }
API cuDeviceGet(int *device, int ordinal) {
    ENTER;
    *device = ordinal;
    LEAVE(ordinal >= 0 && ordinal < device_count() ? OK : INVALID_DEVICE);
}
API cuDeviceGetName(char *name, int length, int device) {
    ENTER;
    snprintf(name, length, "Fake GPU %d", device);
    LEAVE(OK);
}
API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    ENTER;
    memset(uuid, 0xA0 + device, 16);
    LEAVE(OK);
}
API cuDeviceTotalMem_v2(size_t *bytes, int device) { ENTER; (void)device; *bytes = (size_t)8 << 30; LEAVE(OK); }
API cuDeviceGetAttribute(int *value, int attribute, int device) {
    ENTER;
    (void)device;
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : attribute == 16 ? 4 : 1;
    LEAVE(OK);
}
API cuDeviceGetPCIBusId(char *id, int length, int device) {
    ENTER;
    snprintf(id, length, "FFFF:%02X:00.0", device);
    LEAVE(OK);
}

API cuDevicePrimaryCtxRetain(Context **context, int device) {
    ENTER;
    *context = &contexts[device];
    contexts[device].ordinal = device;
    contexts[device].retained++;
    balance.contexts++;
    LEAVE(OK);
}

API cuDevicePrimaryCtxRelease_v2(int device) {
    ENTER_BACK;
    if (!contexts[device].retained) {
        violation("a release of a context that nobody holds");
        LEAVE(INVALID_CONTEXT);
    }
    contexts[device].retained--;
    balance.contexts--;
    LEAVE(planned_);
}

API cuCtxPushCurrent_v2(Context *context) {
    ENTER;
    if (!context || !context->retained || depth == 16)
        LEAVE(INVALID_CONTEXT);
    stack[depth++] = context;
    LEAVE(OK);
}

API cuCtxPopCurrent_v2(Context **context) {
    ENTER_BACK;
    if (!depth)
        LEAVE(INVALID_CONTEXT);
    depth--;
    if (context)
        *context = stack[depth];
    LEAVE(planned_);
}

API cuCtxGetCurrent(Context **context) { ENTER; *context = depth ? stack[depth - 1] : NULL; LEAVE(OK); }

API cuCtxSynchronize(void) {
    ENTER;
    BOUND;
    UNSAFE_IN_CAPTURE;
    for (Stream *s = streams; s; s = s->next)
        drain(s);
    LEAVE(sticky);
}

API cuMemGetInfo_v2(size_t *unused, size_t *total) {
    ENTER;
    BOUND;
    *unused = *total = (size_t)8 << 30;
    LEAVE(OK);
}

API cuThreadExchangeStreamCaptureMode(int *mode) {
    ENTER_BACK;
    int old = capture_mode;
    capture_mode = *mode;
    *mode = old;
    LEAVE(planned_);
}

// ---- memory, streams, events ----------------------------------------------------------------------------------------------------

API cuMemAlloc_v2(uint64_t *at, size_t bytes) { ENTER; BOUND; UNSAFE_IN_CAPTURE; LEAVE(take((void **)at, bytes, 1)); }
API cuMemHostAlloc(void **at, size_t bytes, unsigned flags) {
    ENTER;
    BOUND;
    UNSAFE_IN_CAPTURE;
    if (flags & 4)
        violation("write-combined memory, which the host must not read");
    LEAVE(take(at, bytes, 0));
}
API cuMemFree_v2(uint64_t at) {
    ENTER_BACK;
    BOUND;
    UNSAFE_IN_CAPTURE;
    int code = give((void *)at, 1);
    LEAVE(planned_ ? planned_ : code);
}
API cuMemFreeHost(void *at) {
    ENTER_BACK;
    BOUND;
    UNSAFE_IN_CAPTURE;
    int code = give(at, 0);
    LEAVE(planned_ ? planned_ : code);
}

API cuStreamCreateWithPriority(Stream **stream, unsigned flags, int priority) {
    ENTER;
    BOUND;
    (void)flags, (void)priority;
    *stream = new_stream(stack[depth - 1]);
    balance.streams++;
    LEAVE(OK);
}
API cuStreamCreate(Stream **stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }

API cuStreamDestroy_v2(Stream *stream) {
    ENTER_BACK;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    s->destroyed = 1;
    s->held = 0;
    balance.streams--;
    pthread_cond_broadcast(&changed);
    LEAVE(planned_);
}

API cuStreamSynchronize(void *stream) {
    ENTER;
    BOUND;
    UNSAFE_IN_CAPTURE;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    drain(s);
    LEAVE(sticky);
}

API cuStreamIsCapturing(void *stream, int *status) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    *status = s->capturing;
    LEAVE(OK);
}

API cuStreamWaitEvent(void *stream, Event *event, unsigned flags) {
    ENTER;
    BOUND;
    (void)flags;
    Stream *s = stream_of(stream);
    if (!s || event->destroyed)
        LEAVE(INVALID_HANDLE);
    append(s, (Op){.what = WAIT, .event = event, .turn = event->recorded});
    LEAVE(OK);
}

API cuEventCreate(Event **event, unsigned flags) {
    ENTER;
    BOUND;
    if (!(flags & 2))
        violation("an event that takes the time");
    *event = calloc(1, sizeof **event);
    balance.events++;
    LEAVE(OK);
}

API cuEventRecord(Event *event, void *stream) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s || event->destroyed)
        LEAVE(INVALID_HANDLE);
    if (s->capturing)
        violation("an event became a part of somebody's graph");
    append(s, (Op){.what = RECORD, .event = event, .turn = ++event->recorded});
    LEAVE(OK);
}

#if FAKE_VERSION >= 12050
API cuCtxRecordEvent(Context *context, Event *event) {
    ENTER;
    int *together = calloc(1, sizeof *together);
    long turn = ++event->recorded;
    for (Stream *s = streams; s; s = s->next) {
        if (s->capturing) {
            s->capturing = 2;
            violation("a record of the whole context ended a capture");
        }
        *together += s->context == context && !s->destroyed;
    }
    if (!*together) {
        event->done = turn;
        free(together);
        LEAVE(OK);
    }
    for (Stream *s = streams; s; s = s->next)
        if (s->context == context && !s->destroyed)
            append(s, (Op){.what = RECORD, .event = event, .turn = turn, .together = together});
    LEAVE(OK);
}
#endif

API cuEventQuery(Event *event) {
    ENTER;
    BOUND;
    UNSAFE_IN_CAPTURE;
    LEAVE(event->destroyed ? INVALID_HANDLE : event->done < event->recorded ? NOT_READY : sticky);
}

API cuEventSynchronize(Event *event) {
    ENTER;
    BOUND;
    UNSAFE_IN_CAPTURE;
    long turn = event->recorded;
    while (event->done < turn)
        pthread_cond_wait(&changed, &lock);
    LEAVE(sticky);
}

API cuEventDestroy_v2(Event *event) {
    ENTER_BACK;
    BOUND;
    if (event->destroyed)
        violation("an event given back twice");
    event->destroyed = 1; // kept: operations may still name it
    balance.events--;
    LEAVE(planned_);
}

API cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    if (!find((void *)to, bytes, 1))
        LEAVE(INVALID_VALUE);
    balance.pageable += !find(from, bytes, 0);
    append(s, (Op){.what = COPY, .to = (void *)to, .from = from, .bytes = bytes, .to_device = 1});
    LEAVE(OK);
}

API cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t bytes, void *stream) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    if (!find((void *)from, bytes, 1))
        LEAVE(INVALID_VALUE);
    append(s, (Op){.what = COPY, .to = to, .from = (void *)from, .bytes = bytes, .from_device = 1});
    LEAVE(OK);
}

API cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    if (s->capturing)
        violation("a copy became a part of somebody's graph");
    if (!find((void *)from, bytes, 1) || !find((void *)to, bytes, 1))
        LEAVE(INVALID_VALUE);
    append(s, (Op){.what = COPY, .to = (void *)to, .from = (void *)from, .bytes = bytes, .to_device = 1, .from_device = 1});
    LEAVE(OK);
}

// ---- modules and kernels --------------------------------------------------------------------------------------------------------

#define P(i, type) (*(type *)p[i])
#define RUN(name) \
    static void run_##name(void **p) { \
        name(P(0, const u8 *), P(1, void *), P(2, const u8 *), P(3, u64), P(4, u64), P(5, float), P(6, float), P(7, float), \
             P(8, float), P(9, float), P(10, float), P(11, float), P(12, float)); \
    }
RUN(normalise_1_float16) RUN(normalise_3_float16) RUN(normalise_4_float16)
RUN(normalise_1_bfloat16) RUN(normalise_3_bfloat16) RUN(normalise_4_bfloat16)
RUN(normalise_1_float32) RUN(normalise_3_float32) RUN(normalise_4_float32)
#define RUN_PAD(name, type) \
    static void run_##name(void **p) { \
        name(P(0, const type *), P(1, type *), P(2, const u64 *), P(3, u64), P(4, u64), P(5, u64), P(6, u64), P(7, u64), P(8, int), \
             P(9, int)); \
    }
RUN_PAD(pad_1, u8) RUN_PAD(pad_2, u16) RUN_PAD(pad_4, u32) RUN_PAD(pad_8, u64)
static void run_lengths(void **p) { lengths(P(0, const u64 *), P(1, u64 *), P(2, u64), P(3, u64), P(4, u64)); }
static void run_cast(void **p) { cast(P(0, void *), P(1, void *), P(2, u64), P(3, int), P(4, int)); }

static void run_resample(void **p) {
    resample(P(0, const Photo *), P(1, void *), P(2, u64), P(3, u32), P(4, u32), P(5, int), P(6, int), P(7, int), P(8, float), P(9, float),
             P(10, float), P(11, float), P(12, float), P(13, float));
}

// A parameter is q: 8 bytes, i: an integer of 4, f: a float.
#define NORM "qqqqqffffffff"
#define PADDING "qqqqqqqqii"
static const Kernel KERNELS[] = {
    {"normalise_1_float16", NORM, run_normalise_1_float16}, {"normalise_3_float16", NORM, run_normalise_3_float16},
    {"normalise_4_float16", NORM, run_normalise_4_float16}, {"normalise_1_bfloat16", NORM, run_normalise_1_bfloat16},
    {"normalise_3_bfloat16", NORM, run_normalise_3_bfloat16}, {"normalise_4_bfloat16", NORM, run_normalise_4_bfloat16},
    {"normalise_1_float32", NORM, run_normalise_1_float32}, {"normalise_3_float32", NORM, run_normalise_3_float32},
    {"normalise_4_float32", NORM, run_normalise_4_float32}, {"cast", "qqqii", run_cast},
    {"pad_1", PADDING, run_pad_1}, {"pad_2", PADDING, run_pad_2}, {"pad_4", PADDING, run_pad_4}, {"pad_8", PADDING, run_pad_8},
    {"lengths", "qqqqq", run_lengths}, {"resample", "qqqiiiiiffffff", run_resample},
};

API cuModuleLoadData(char **module, const char *image) {
    ENTER;
    BOUND;
    if (!strstr(image, ".version 8.0"))
        LEAVE(INVALID_IMAGE);
    *module = strdup(image);
    balance.modules++;
    LEAVE(OK);
}

API cuModuleUnload(char *module) {
    ENTER_BACK;
    BOUND;
    free(module);
    balance.modules--;
    LEAVE(planned_);
}

// The parameters declared by the PTX must match those of the C function.
API cuModuleGetFunction(const Kernel **function, const char *module, const char *name) {
    ENTER;
    BOUND;
    char entry[128];
    snprintf(entry, sizeof entry, ".entry %s(", name);
    const char *at = strstr(module, entry);
    const Kernel *kernel = NULL;
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].name, name))
            kernel = &KERNELS[i];
    if (!at || !kernel)
        LEAVE(NOT_FOUND);
    const char *end = strchr(at, ')');
    char found[32] = "";
    for (size_t i = 0; (at = strstr(at, ".param .")) && at < end && i < sizeof found - 1; i++, at++)
        found[i] = at[8] == 'f' ? 'f' : !strncmp(at + 9, "64", 2) ? 'q' : 'i';
    if (strcmp(found, kernel->signature)) {
        violation("a kernel's parameters");
        LEAVE(INVALID_IMAGE);
    }
    *function = kernel;
    LEAVE(OK);
}

API cuLaunchKernel(const Kernel *kernel, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *stream, void **parameters, void **extra) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    if (!gx || gx > 0x7fffffff || !gy || gy > 65535 || gz != 1 || !bx || bx > 256 || by != 1 || bz != 1 || shared || extra)
        LEAVE(INVALID_VALUE);
    Op op = {.what = LAUNCH, .kernel = kernel, .grid = {gx, gy}, .block = bx, .parameters = strlen(kernel->signature)};
    for (int i = 0; i < op.parameters; i++)
        memcpy(op.values[i], parameters[i], kernel->signature[i] == 'q' ? 8 : 4);
    append(s, op);
    LEAVE(OK);
}

// ---- captures, as far as tests need them ------------------------------------------------------------------------------------------

API cuStreamBeginCapture_v2(void *stream, int mode) {
    ENTER;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s || s->capturing)
        LEAVE(INVALID_VALUE);
    (void)mode;
    s->capturing = 1;
    captures++;
    LEAVE(OK);
}

API cuStreamEndCapture(void *stream, void **graph) {
    ENTER_BACK;
    BOUND;
    Stream *s = stream_of(stream);
    if (!s || !s->capturing)
        LEAVE(INVALID_VALUE);
    int code = s->capturing == 2 ? 901 : OK;
    s->capturing = 0;
    captures--;
    *graph = NULL;
    LEAVE(code);
}

// ---- for other fake libraries of CUDA, which work on its streams ----------------------------------------------------------------

// Returns the planned result of a call of `function`, and counts the call; 0: nothing is planned.
API fakePlanned(const char *function) { pthread_mutex_lock(&lock); LEAVE(planned(function)); }

API fakeViolation(const char *what) { pthread_mutex_lock(&lock); violation(what); LEAVE(OK); }

// Calls `call` with `argument` when the stream reaches it.
API fakeAppend(void *stream, void (*call)(void *), void *argument) {
    pthread_mutex_lock(&lock);
    BOUND;
    Stream *s = stream_of(stream);
    if (!s)
        LEAVE(INVALID_HANDLE);
    append(s, (Op){.what = CALL, .call = call, .argument = argument});
    LEAVE(OK);
}

// Returns true if all `bytes` at `at` are unfreed memory of a device.
API fakeHolds(const void *at, size_t bytes) { pthread_mutex_lock(&lock); LEAVE(find(at, bytes, 1) != NULL); }

// ---- control by tests -----------------------------------------------------------------------------------------------------------

// A new seed; delays of up to `most` microseconds; no failure is planned. Streams must be idle.
API fakeReset(uint64_t new_seed, unsigned most) {
    pthread_mutex_lock(&lock);
    seed = new_seed, longest = most, made = 0, sticky = OK;
    failing.code = 0, calls = matching = 0;
    balance.violations = balance.pageable = 0;
    for (Stream *s = streams; s; s = s->next)
        s->dice = seed * 1000003 + ++made;
    LEAVE(OK);
}

// From now on, call number `nth` (from 1) of `function` returns `code`; "*" counts the calls of all functions.
API fakeFail(const char *function, long nth, int code) {
    pthread_mutex_lock(&lock);
    snprintf(failing.function, sizeof failing.function, "%s", function);
    failing.nth = nth, failing.code = code, matching = 0;
    LEAVE(OK);
}

// Calls since the last reset.
API fakeCalls(void) { pthread_mutex_lock(&lock); LEAVE((int)calls); }

// Eight numbers: device and host allocations, events, streams, modules, contexts held; violations; copies from pageable memory.
API fakeBalance(long *out) {
    pthread_mutex_lock(&lock);
    memcpy(out, &balance, sizeof balance);
    LEAVE(OK);
}

// Marks calls of this thread as a consumer's, which are not counted and never fail.
API fakeExempt(int on) { exempt = on; return OK; }

// Two numbers: total allocations of device and of page-locked memory.
API fakeTotals(long *out) {
    pthread_mutex_lock(&lock);
    memcpy(out, totals, sizeof totals);
    LEAVE(OK);
}

// Stops or resumes the stream. Queued operations stay queued.
API fakeHold(void *stream, int on) {
    pthread_mutex_lock(&lock);
    for (Stream *s = streams; s; s = s->next)
        if (s == stream)
            s->held = on;
    pthread_cond_broadcast(&changed);
    LEAVE(OK);
}

__attribute__((destructor)) static void report(void) {
    const char *path = getenv("FAKE_CUDA_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file)
        return;
    fprintf(file, "{\"device\": %ld, \"host\": %ld, \"events\": %ld, \"streams\": %ld, \"modules\": %ld, \"contexts\": %ld, "
            "\"violations\": %ld, \"pageable\": %ld}\n", balance.device, balance.host, balance.events, balance.streams,
            balance.modules, balance.contexts, balance.violations, balance.pageable);
    fclose(file);
}
