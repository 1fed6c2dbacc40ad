/* A stand-in for libnvidia-ml.so.1: what nodeagent asks of NVML, answered from a control file.
 *
 * NVML_STANDIN names the file. It is read anew at every call, so that a test changes the machine while it
 * is watched, by replacing the file. One word and its fields a line:
 *
 *   driver 580.95.05
 *   gpu <index> <uuid> <minor> <bus id> <bytes> <mig 0|1> <lost 0|1> <recovery action, -1: unknown> <events> <name>
 *   fail <function> <nvmlReturn> [index]     that call fails, for that GPU or for all
 *   hang <function>                          that call does not return while the line stands
 *   event <sequence> <index> <type> <data>   told once to each event set that was created before it
 *
 * Layouts are those of nvml.h as nvidia-ml-py declares them. Two habits of the driver are kept on purpose:
 * waiting on a set in which a GPU is lost fails at once, every time; a lost GPU does not tell its UUID.
 * Shutting down while another thread waits aborts: the real one is undefined there.
 * -DOLD_DRIVER leaves out what r418 did not export.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, TIMEOUT = 10, GPU_IS_LOST = 15 };
enum { GPUS = 16, EVENTS = 512, RULES = 64, FIELD_RECOVERY_ACTION = 230 };

typedef struct { int index; } Device;
typedef struct { unsigned long long mask[GPUS]; long told; } EventSet;
typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    union { double d; unsigned u; unsigned long long ull; } value;
} FieldValue;

typedef struct {
    int there, mig, lost, action, minor;
    unsigned long long bytes, events;
    char uuid[96], name[96], bus_id[32];
} Gpu;
typedef struct { char call[64]; int result, index, hang; } Rule;
typedef struct { long sequence; int index; unsigned long long type, data; } Event;
typedef struct {
    char version[80];
    int gpus, rules, events;
    Gpu gpu[GPUS];
    Rule rule[RULES];
    Event event[EVENTS];
} Machine;

static Device devices[GPUS] = {{0}, {1}, {2}, {3}, {4}, {5}, {6}, {7}, {8}, {9}, {10}, {11}, {12}, {13}, {14}, {15}};
static atomic_int opened, waiting;

static void nap(void) { nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL); }

static void look(Machine *m) {
    char line[512];
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    memset(m, 0, sizeof *m);
    if (!file) return;
    while (fgets(line, sizeof line, file)) {
        Gpu g = {.there = 1};
        Rule r = {.index = -1};
        Event e;
        int index;
        if (sscanf(line, "driver %79s", m->version) == 1) continue;
        if (sscanf(line, "gpu %d %95s %d %31s %llu %d %d %d %lli %95[^\n]", &index, g.uuid, &g.minor, g.bus_id,
                   &g.bytes, &g.mig, &g.lost, &g.action, (long long *)&g.events, g.name) == 10 &&
            index >= 0 && index < GPUS) {
            m->gpu[index] = g;
            if (index >= m->gpus) m->gpus = index + 1;
        } else if (sscanf(line, "fail %63s %d %d", r.call, &r.result, &r.index) >= 2 && m->rules < RULES) {
            m->rule[m->rules++] = r;
        } else if (sscanf(line, "hang %63s", r.call) == 1 && m->rules < RULES) {
            r.hang = 1;
            m->rule[m->rules++] = r;
        } else if (sscanf(line, "event %ld %d %llu %llu", &e.sequence, &e.index, &e.type, &e.data) == 4 &&
                   m->events < EVENTS) {
            m->event[m->events++] = e;
        }
    }
    fclose(file);
}

/* What every call does first: the rules of the control file, for a GPU (or -1) that is asked about. */
static int enter(Machine *m, const char *call, int index) {
    for (;;) {
        int hang = 0;
        look(m);
        for (int i = 0; i < m->rules; i++) {
            Rule *r = &m->rule[i];
            if (strcmp(r->call, call)) continue;
            if (!r->hang && (r->index < 0 || r->index == index)) return r->result;
            hang |= r->hang;
        }
        if (!hang) break;
        nap();
    }
    if (!opened && strncmp(call, "nvmlInit", 8)) return UNINITIALIZED;
    if (index >= 0 && (index >= m->gpus || !m->gpu[index].there)) return INVALID_ARGUMENT;
    return index >= 0 && m->gpu[index].lost ? GPU_IS_LOST : OK;
}

#define ENTER(call, index)                                 \
    static _Thread_local Machine m;                        \
    int result = enter(&m, call, index);                   \
    if (result != OK) return result

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    ENTER("nvmlInitWithFlags", -1);
    opened++;
    return OK;
}

int nvmlShutdown(void) {
    ENTER("nvmlShutdown", -1);
    if (waiting && opened == 1) { /* NVML counts its openings */
        fprintf(stderr, "stand-in: nvmlShutdown while a thread waits\n");
        abort();
    }
    opened--;
    return OK;
}

const char *nvmlErrorString(int result) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "stand-in error %d", result);
    return text;
}

int nvmlSystemGetDriverVersion(char *version, unsigned length) {
    ENTER("nvmlSystemGetDriverVersion", -1);
    snprintf(version, length, "%s", m.version);
    return OK;
}

int nvmlDeviceGetCount_v2(unsigned *count) {
    ENTER("nvmlDeviceGetCount_v2", -1);
    *count = (unsigned)m.gpus;
    return OK;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    ENTER("nvmlDeviceGetHandleByIndex_v2", (int)index);
    *device = &devices[index];
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    ENTER("nvmlDeviceGetUUID", device->index);
    snprintf(uuid, length, "%s", m.gpu[device->index].uuid);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    ENTER("nvmlDeviceGetName", device->index);
    snprintf(name, length, "%s", m.gpu[device->index].name);
    return OK;
}

int nvmlDeviceGetMinorNumber(Device *device, unsigned *minor) {
    ENTER("nvmlDeviceGetMinorNumber", device->index);
    *minor = (unsigned)m.gpu[device->index].minor;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    ENTER("nvmlDeviceGetPciInfo_v3", device->index);
    memset(info, 0, sizeof *info);
    memcpy(info->bus_id, m.gpu[device->index].bus_id, sizeof info->bus_id);
    sscanf(info->bus_id, "%x:%x:%x", &info->domain, &info->bus, &info->device);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ENTER("nvmlDeviceGetMemoryInfo", device->index);
    memory->total = memory->free = m.gpu[device->index].bytes;
    memory->used = 0;
    return OK;
}

int nvmlEventSetCreate(EventSet **set) {
    ENTER("nvmlEventSetCreate", -1);
    *set = calloc(1, sizeof **set);
    if (!*set) return 20;
    for (int i = 0; i < m.events; i++)
        if (m.event[i].sequence > (*set)->told) (*set)->told = m.event[i].sequence;
    return OK;
}

int nvmlEventSetFree(EventSet *set) {
    ENTER("nvmlEventSetFree", -1);
    free(set);
    return OK;
}

int nvmlDeviceGetSupportedEventTypes(Device *device, unsigned long long *types) {
    ENTER("nvmlDeviceGetSupportedEventTypes", device->index);
    *types = m.gpu[device->index].events;
    return OK;
}

int nvmlDeviceRegisterEvents(Device *device, unsigned long long types, EventSet *set) {
    ENTER("nvmlDeviceRegisterEvents", device->index);
    if (types & ~m.gpu[device->index].events) return NOT_SUPPORTED;
    set->mask[device->index] |= types;
    return OK;
}

#ifndef OLD_DRIVER
int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetMigMode", device->index);
    *current = *pending = (unsigned)m.gpu[device->index].mig;
    return OK;
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    ENTER("nvmlDeviceGetFieldValues", device->index);
    int action = m.gpu[device->index].action;
    for (int i = 0; i < count; i++) {
        values[i].type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        values[i].result = values[i].field == FIELD_RECOVERY_ACTION && action >= 0 ? OK : NOT_SUPPORTED;
        values[i].value.u = (unsigned)action;
    }
    return OK;
}

static long now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int next_event(Machine *m, EventSet *set, EventData *data) {
    for (int i = 0; i < m->events; i++) {
        Event *e = &m->event[i];
        if (e->sequence <= set->told) continue;
        set->told = e->sequence;
        if (!(set->mask[e->index] & e->type)) continue;
        *data = (EventData){&devices[e->index], e->type, e->data, ~0u, ~0u};
        return 1;
    }
    return 0;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned timeout_ms) {
    long until = now_ms() + timeout_ms;
    int result;
    waiting++;
    for (;;) {
        static _Thread_local Machine m;
        result = enter(&m, "nvmlEventSetWait_v2", -1);
        if (result != OK || next_event(&m, set, data)) break;
        for (int i = 0; i < m.gpus; i++)
            if (set->mask[i] && m.gpu[i].lost) result = GPU_IS_LOST;
        if (result == OK && now_ms() >= until) result = TIMEOUT;
        if (result != OK) break;
        nap();
    }
    waiting--;
    return result;
}
#endif
