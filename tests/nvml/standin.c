/* A stand-in for libnvidia-ml.so.1: the NVML calls of nodeagent, answered from a control file.
 *
 * NVML_STANDIN is the path of the file. Every call reads it, so that a test can change the machine at any time by
 * replacing the file. Each line is a word and its fields:
 *
 *   driver 580.95.05
 *   gpu <index> <uuid> <minor> <bus id> <bytes> <mig 0|1> <lost 0|1> <recovery action, -1: unknown, -2: not available> <events> <name>
 *   excluded <bus id>                        the module's parameter leaves this GPU out
 *   fail <function> <nvmlReturn> [index]     that call fails, for that GPU or for all
 *   hang <function>                          that call does not return while the file has the line
 *   event <sequence> <index> <type> <data>   sent once to each event set that was created before it
 *   vital <index> <name> <value>             a number, by the names below; without it: NOT_SUPPORTED. Index -1: of the
 *                                            driver (cuda 13000)
 *   field <index> <id>/<scope> <type> <value>  a field value and its nvmlValueType; without it: NOT_SUPPORTED
 *   text <index> <name> <text>               serial, vbios
 *   process <index> <pid> <bytes>            computes on that GPU
 *   graphics <index> <pid> <bytes>           has a graphics context there
 *   mps <index> <pid> <bytes>                is a client of MPS there
 *   fabric <index> <newest version, 0: none> <state> <status> <clique> <32 hex digits of the cluster's UUID>
 *                                            the registration with the NVSwitch fabric
 *   nvlink <index> <link> <bus id>           what that NVLink leads to
 *   mig <index> <slot> <uuid> <gpu instance> <compute instance> <MiB> <slices> <compute slices> <name>
 *                                            a MIG device of that GPU, which has <mig> 1; slots may have gaps
 *   profile <index> <kind> <number> <slices> <MiB> <multiprocessors> <memory slices> <first ones, as 0,2,4> <name>
 *                                            a kind of GPU instance of that GPU, which has <mig> 1
 *   used <index> <first memory slice>        a process uses the MIG device that was made there
 *   sample <index> <pid> <time in us> <percent>  the utilization of the SMs by that process
 *   quiet                                    a wait does not fail for a lost GPU
 *   forgetful                                a memory limit is accepted and not kept
 *   misc                                     memory limits are kept by the driver; without it, by the controller dmem
 *   charged <index> <bytes>                  with misc: memory that each cgroup with a limit of its own has used since
 *
 * Memory limits were compared on 2026-11-24 with nvml.h of CUDA 13.4 (nvidia-nvml-dev 13.4.92: both functions, their
 * return values and structures), with memacct.c of the open kernel modules 615.71.09 (commit 61dcc937), and with
 * kernel/cgroup/dmem.c of Linux (34f3e259). NVIDIA's MPS documentation ("MPS v3 Memory Partitioning") has the rest. What
 * libnvidia-ml does in between is closed: which NVML error NV_ERR_INVALID_LIMIT becomes (here INVALID_ARGUMENT), and how
 * it writes to dmem, are our assumptions.
 * A name space is the folder of a cgroup; one that cannot be opened is OPERATING_SYSTEM. A soft limit above the hard one,
 * and one above the memory of the GPU, are INVALID_ARGUMENT; the highest value clears. Without a limit on the cgroup or an
 * ancestor the getter answers NOT_FOUND with dmem, or (0, highest) if dmem.max has "max", and NOT_SUPPORTED with misc. A
 * limit below the charged memory is refused by misc; dmem answers success and keeps the limit that it had (the kernel
 * drops the error of page_counter_set_max).
 * With dmem the limits are in the files dmem.max and dmem.min of a cgroup, and the charged memory in dmem.current, lines
 * "<bus id> <bytes>"; a cgroup without these files cannot have a limit of its own (our choice: NOT_FOUND), a read shows
 * that of the nearest ancestor with one, and a soft limit is added to dmem.min of each ancestor. A cgroup that is removed
 * takes nothing back from its ancestors. With misc the limits are in the file NVML_STANDIN.limits; memory that was
 * allocated before the first limit is not charged there. NVML_STANDIN.calls gets a line for each call that sets a limit.
 *
 * The layouts are those of nvml.h as declared by nvidia-ml-py. The stand-in copies two properties of the driver:
 * a wait on a set with a lost GPU fails at once, every time; a lost GPU does not return its UUID. The answer about the
 * utilization of processes has always SAMPLES entries, and those that are not used hold values of no process.
 * A shutdown while another thread waits aborts the process: the real one is undefined there.
 * -DTOO_OLD is the library of another version than the kernel module: it refuses to open.
 * -DOLD_DRIVER omits the functions that r418 does not export, and others that the agent does not need.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15,
       OPERATING_SYSTEM = 17 };
enum { GPUS = 16, EVENTS = 512, RULES = 64, FIELD_RECOVERY_ACTION = 230 };

typedef struct { int index, mig; } Device; /* mig: 0, or 1 + the slot of a MIG device */
typedef struct { unsigned long long mask[GPUS]; long delivered; } EventSet;
typedef struct { Device *device; unsigned long long type, data; unsigned gpu_instance, compute_instance; } EventData;
typedef struct {
    char legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    unsigned version;
    unsigned long long aggregate_parity, aggregate_secded, aggregate_corrected;
    unsigned long long volatile_parity, volatile_secded, volatile_corrected;
    unsigned long long l2, sm, pcie, mcu, other;
    unsigned threshold_exceeded;
} SramStatus;
typedef struct { unsigned char cluster[16]; int status; unsigned clique; unsigned char state; } FabricInfo1;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
} FabricInfo2;
typedef struct {
    unsigned version;
    unsigned char cluster[16];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health;
    unsigned char summary;
} FabricInfo3;
typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu_instance, compute_instance; } Process;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    unsigned type, result;
    union { double d; unsigned u; unsigned long long ull; int i; unsigned short us; } value;
} FieldValue;

typedef struct {
    int there, mig, lost, action, minor;
    unsigned long long bytes, events;
    char uuid[96], name[96], bus_id[32];
} Gpu;
typedef struct { char call[64]; int result, index, hang; } Rule;
typedef struct { long sequence; int index; unsigned long long type, data; } Event;
typedef struct {
    char version[80], excluded[GPUS][32];
    int gpus, rules, events, exclusions;
    Gpu gpu[GPUS];
    Rule rule[RULES];
    Event event[EVENTS];
} Machine;

enum { MIGS = 7 };
static Device devices[GPUS], mig_devices[GPUS][MIGS];
static atomic_int opened, waiting;

__attribute__((constructor)) static void number_devices(void) {
    for (int i = 0; i < GPUS; i++) {
        devices[i].index = i;
        for (int slot = 0; slot < MIGS; slot++) mig_devices[i][slot] = (Device){i, 1 + slot};
    }
}

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
        if (m->exclusions < GPUS && sscanf(line, "excluded %31s", m->excluded[m->exclusions]) == 1) m->exclusions++;
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

/* The rest of the line "<kind> <index> <key> ...", if there is one. */
static int rest_of_line(const char *kind, int index, const char *key, char *rest, size_t length) {
    char line[512], k[16], name[64];
    int i, at, found = 0;
    const char *path = getenv("NVML_STANDIN");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file))
        if (sscanf(line, "%15s %d %63s %n", k, &i, name, &at) == 3 && !strcmp(k, kind) && i == index &&
            !strcmp(name, key)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(rest, length, "%s", line + at);
            found = 1;
        }
    fclose(file);
    return found;
}

static int vital(Device *device, const char *name, unsigned long long *value) {
    char rest[128];
    if (!rest_of_line("vital", device->index, name, rest, sizeof rest)) return NOT_SUPPORTED;
    *value = strtoull(rest, NULL, 0);
    return OK;
}

static int small_vital(Device *device, const char *name, unsigned *value) {
    unsigned long long wide = 0;
    int result = vital(device, name, &wide);
    if (result == OK) *value = (unsigned)wide;
    return result;
}

static int text(Device *device, const char *name, char *out, unsigned length) {
    return rest_of_line("text", device->index, name, out, length) ? OK : NOT_SUPPORTED;
}

/* The first step of every call: apply the rules of the control file for a GPU (or -1 for none). */
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

/* GPM: "gpm GPU METRIC VALUE" lines are the means between any two samples of that GPU. */
typedef struct { int index; long taken; } GpmSample;
typedef struct { unsigned metric; int result; double value; const char *names[3]; } GpmMetric;
typedef struct {
    unsigned version, count;
    GpmSample *first, *second;
    GpmMetric metrics[333];
} GpmMetrics;
static atomic_int gpm_samples;
#ifndef OLD_DRIVER
static atomic_long gpm_taken;
#endif

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
#ifdef TOO_OLD
    return 18; /* NVML_ERROR_LIB_RM_VERSION_MISMATCH */
#endif
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
    if (gpm_samples && opened == 1) {
        fprintf(stderr, "stand-in: nvmlShutdown with %d samples\n", gpm_samples);
        abort();
    }
    opened--;
    return OK;
}

#ifndef OLD_DRIVER
int nvmlGpmSampleAlloc(GpmSample **sample) {
    ENTER("nvmlGpmSampleAlloc", -1);
    *sample = calloc(1, sizeof **sample);
    (*sample)->index = -1;
    gpm_samples++;
    return OK;
}

int nvmlGpmSampleFree(GpmSample *sample) {
    ENTER("nvmlGpmSampleFree", -1);
    gpm_samples--;
    free(sample);
    return OK;
}

int nvmlGpmSampleGet(Device *device, GpmSample *sample) {
    ENTER("nvmlGpmSampleGet", device->index);
    *sample = (GpmSample){device->index, ++gpm_taken};
    return OK;
}

int nvmlGpmMetricsGet(GpmMetrics *asked) {
    ENTER("nvmlGpmMetricsGet", -1);
    GpmSample *a = asked->first, *b = asked->second;
    if (asked->version != 1 || asked->count > 333) return INVALID_ARGUMENT;
    if (a->index < 0 || a->index != b->index || a->taken >= b->taken) return INVALID_ARGUMENT;
    for (unsigned i = 0; i < asked->count; i++) {
        GpmMetric *metric = &asked->metrics[i];
        char line[512];
        int index;
        unsigned number;
        double value;
        FILE *file = fopen(getenv("NVML_STANDIN"), "r");
        metric->result = NOT_SUPPORTED;
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "gpm %d %u %lf", &index, &number, &value) == 3 && index == a->index && number == metric->metric) {
                metric->result = OK;
                metric->value = value;
            }
        if (file) fclose(file);
    }
    return OK;
}
#endif

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

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    char rest[32];
    ENTER("nvmlSystemGetCudaDriverVersion_v2", -1);
    if (!rest_of_line("vital", -1, "cuda", rest, sizeof rest)) return NOT_SUPPORTED;
    *version = atoi(rest);
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

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    ENTER("nvmlDeviceGetHandleByUUID", -1);
    for (int i = 0; i < m.gpus; i++)
        if (m.gpu[i].there && !strcmp(m.gpu[i].uuid, uuid)) {
            *device = &devices[i];
            return m.gpu[i].lost ? GPU_IS_LOST : OK;
        }
    return NOT_FOUND;
}

typedef struct {
    char uuid[96], name[64];
    unsigned gpu_instance, compute_instance, slices, compute_slices;
    unsigned long long mib;
} Mig;

/* A MIG device that was destroyed: its handle stays, and no call knows it. */
static int mig_of(Device *device, Mig *mig) {
    char key[16], rest[256];
    snprintf(key, sizeof key, "%d", device->mig - 1);
    if (!device->mig || !rest_of_line("mig", device->index, key, rest, sizeof rest) ||
        sscanf(rest, "%95s %u %u %llu %u %u %63s", mig->uuid, &mig->gpu_instance, &mig->compute_instance, &mig->mib,
               &mig->slices, &mig->compute_slices, mig->name) != 7)
        return INVALID_ARGUMENT;
    return OK;
}

int nvmlDeviceSetComputeMode(Device *device, int mode) {
    char path[512];
    ENTER("nvmlDeviceSetComputeMode", device->index);
    if (mode < 0 || mode > 3) return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "%s.calls", getenv("NVML_STANDIN"));
    FILE *calls = fopen(path, "a");
    if (calls) {
        fprintf(calls, "%s mode %d\n", m.gpu[device->index].uuid, mode);
        fclose(calls);
    }
    return OK;
}

int nvmlDeviceGetUUID(Device *device, char *uuid, unsigned length) {
    ENTER("nvmlDeviceGetUUID", device->index);
    if (device->mig > MIGS) {
        snprintf(uuid, length, "MIG-made-%d-%d", device->index, device->mig - MIGS);
        return OK;
    }
    if (device->mig) {
        Mig mig;
        result = mig_of(device, &mig);
        if (result == OK) snprintf(uuid, length, "%s", mig.uuid);
        return result;
    }
    snprintf(uuid, length, "%s", m.gpu[device->index].uuid);
    return OK;
}

int nvmlDeviceGetName(Device *device, char *name, unsigned length) {
    ENTER("nvmlDeviceGetName", device->index);
    if (device->mig) {
        Mig mig;
        result = mig_of(device, &mig);
        /* Drivers before MIG devices had names return that of the GPU: name "-". */
        if (result == OK && strcmp(mig.name, "-")) {
            snprintf(name, length, "%s MIG %s", m.gpu[device->index].name, mig.name);
            return OK;
        }
        if (result != OK) return result;
    }
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

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *info) {
    char key[16], rest[128];
    ENTER("nvmlDeviceGetNvLinkRemotePciInfo_v2", device->index);
    memset(info, 0, sizeof *info);
    snprintf(key, sizeof key, "%u", link);
    if (!rest_of_line("nvlink", device->index, key, rest, sizeof rest)) return NOT_SUPPORTED;
    sscanf(rest, "%31s", info->bus_id);
    return OK;
}

int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    ENTER("nvmlDeviceGetMemoryInfo", device->index);
    memory->total = memory->free = m.gpu[device->index].bytes;
    memory->used = 0;
    vital(device, "memory_used", &memory->used);
    return OK;
}

typedef struct {
    unsigned version;
    unsigned long long total, reserved, free, used;
} MemoryV2;

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    unsigned long long reserved;
    ENTER("nvmlDeviceGetMemoryInfo_v2", device->index);
    if (memory->version != (2u << 24 | sizeof *memory))
        return 25; /* ARGUMENT_VERSION_MISMATCH */
    if (vital(device, "memory_reserved", &reserved))
        return 13; /* FUNCTION_NOT_FOUND */
    memory->total = memory->free = m.gpu[device->index].bytes;
    memory->reserved = reserved;
    memory->used = 0;
    vital(device, "memory_used", &memory->used);
    return OK;
}

int nvmlDeviceGetMemoryErrorCounter(Device *device, int error, int counter, int location, unsigned long long *count) {
    char name[32];
    ENTER("nvmlDeviceGetMemoryErrorCounter", device->index);
    snprintf(name, sizeof name, "ecc_%d_%d_%d", error, counter, location);
    return vital(device, name, count);
}

#define SMALL(call, name)                        \
    int call(Device *device, unsigned *value) {  \
        ENTER(#call, device->index);             \
        return small_vital(device, name, value); \
    }

SMALL(nvmlDeviceGetCurrPcieLinkGeneration, "pcie_generation")
SMALL(nvmlDeviceGetMaxPcieLinkGeneration, "pcie_generation_max")
SMALL(nvmlDeviceGetCurrPcieLinkWidth, "pcie_width")
SMALL(nvmlDeviceGetMaxPcieLinkWidth, "pcie_width_max")
SMALL(nvmlDeviceGetPerformanceState, "pstate")
SMALL(nvmlDeviceGetPowerUsage, "power_mw")
SMALL(nvmlDeviceGetEnforcedPowerLimit, "power_limit_mw")

int nvmlDeviceGetEccMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetEccMode", device->index);
    result = small_vital(device, "ecc", current);
    if (result == OK) *pending = !*current;
    return result;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, unsigned long long *mj) {
    ENTER("nvmlDeviceGetTotalEnergyConsumption", device->index);
    return vital(device, "energy_mj", mj);
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, unsigned long long *bits) {
    ENTER("nvmlDeviceGetCurrentClocksEventReasons", device->index);
    return vital(device, "clock_reasons", bits);
}

/* The former name of the same call; drivers before 535 have only this one. */
int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, unsigned long long *bits) {
    ENTER("nvmlDeviceGetCurrentClocksThrottleReasons", device->index);
    return vital(device, "clock_reasons", bits);
}

typedef struct {
    unsigned version;
    int celsius;
} MarginTemperature;

int nvmlDeviceGetMarginTemperature(Device *device, MarginTemperature *margin) {
    unsigned long long value = 0;
    ENTER("nvmlDeviceGetMarginTemperature", device->index);
    if (margin->version != (1u << 24 | sizeof *margin)) return 25; /* ARGUMENT_VERSION_MISMATCH */
    result = vital(device, "margin", &value);
    if (result == OK) margin->celsius = (int)(long long)value;
    return result;
}

int nvmlDeviceGetTemperatureThreshold(Device *device, int threshold, unsigned *celsius) {
    char name[32];
    ENTER("nvmlDeviceGetTemperatureThreshold", device->index);
    snprintf(name, sizeof name, "threshold_%d", threshold);
    return small_vital(device, name, celsius);
}

int nvmlDeviceGetClockInfo(Device *device, int clock, unsigned *mhz) {
    char name[32];
    ENTER("nvmlDeviceGetClockInfo", device->index);
    snprintf(name, sizeof name, "clock_%d", clock);
    return small_vital(device, name, mhz);
}

#define CODEC(call, name)                                         \
    int call(Device *device, unsigned *percent, unsigned *us) {   \
        ENTER(#call, device->index);                              \
        *us = 167000;                                             \
        return small_vital(device, name, percent);                \
    }

CODEC(nvmlDeviceGetEncoderUtilization, "encoder")
CODEC(nvmlDeviceGetDecoderUtilization, "decoder")

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    ENTER("nvmlDeviceGetTemperature", device->index);
    return sensor ? INVALID_ARGUMENT : small_vital(device, "celsius", celsius);
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *rates) {
    ENTER("nvmlDeviceGetUtilizationRates", device->index);
    rates->memory = 0;
    small_vital(device, "memory_utilization", &rates->memory);
    return small_vital(device, "utilization", &rates->gpu);
}

int nvmlDeviceGetSerial(Device *device, char *out, unsigned length) {
    ENTER("nvmlDeviceGetSerial", device->index);
    return text(device, "serial", out, length);
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    unsigned whole = 0;
    ENTER("nvmlDeviceGetCudaComputeCapability", device->index);
    result = small_vital(device, "compute", &whole);
    *major = (int)whole / 10, *minor = (int)whole % 10;
    return result;
}

int nvmlDeviceGetVbiosVersion(Device *device, char *out, unsigned length) {
    ENTER("nvmlDeviceGetVbiosVersion", device->index);
    return text(device, "vbios", out, length);
}

int nvmlEventSetCreate(EventSet **set) {
    ENTER("nvmlEventSetCreate", -1);
    *set = calloc(1, sizeof **set);
    if (!*set) return 20;
    for (int i = 0; i < m.events; i++)
        if (m.event[i].sequence > (*set)->delivered) (*set)->delivered = m.event[i].sequence;
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
typedef struct { PciInfo pci; char uuid[80]; } Excluded;

int nvmlGetExcludedDeviceCount(unsigned *count) {
    ENTER("nvmlGetExcludedDeviceCount", -1);
    *count = (unsigned)m.exclusions;
    return OK;
}

int nvmlGetExcludedDeviceInfoByIndex(unsigned index, Excluded *info) {
    ENTER("nvmlGetExcludedDeviceInfoByIndex", -1);
    if (index >= (unsigned)m.exclusions) return INVALID_ARGUMENT;
    memset(info, 0, sizeof *info);
    memcpy(info->pci.bus_id, m.excluded[index], sizeof info->pci.bus_id);
    return OK;
}

int nvmlDeviceGetMigMode(Device *device, unsigned *current, unsigned *pending) {
    ENTER("nvmlDeviceGetMigMode", device->index);
    *current = *pending = (unsigned)m.gpu[device->index].mig;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(Device *device, unsigned *count) {
    ENTER("nvmlDeviceGetMaxMigDeviceCount", device->index);
    *count = m.gpu[device->index].mig ? MIGS : 0;
    return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(Device *device, unsigned slot, Device **out) {
    Mig mig;
    ENTER("nvmlDeviceGetMigDeviceHandleByIndex", device->index);
    if (slot >= MIGS || !m.gpu[device->index].mig) return INVALID_ARGUMENT;
    if (mig_of(&mig_devices[device->index][slot], &mig) != OK) return NOT_FOUND;
    *out = &mig_devices[device->index][slot];
    return OK;
}

#define OF_MIG(call, field)                     \
    int call(Device *device, unsigned *value) { \
        Mig mig;                                \
        ENTER(#call, device->index);            \
        result = mig_of(device, &mig);          \
        if (result == OK) *value = mig.field;   \
        return result;                          \
    }

OF_MIG(nvmlDeviceGetGpuInstanceId, gpu_instance)
OF_MIG(nvmlDeviceGetComputeInstanceId, compute_instance)

typedef struct {
    unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa, slices, compute_slices;
    unsigned long long mib;
} Attributes;

int nvmlDeviceGetAttributes_v2(Device *device, Attributes *attributes) {
    Mig mig;
    ENTER("nvmlDeviceGetAttributes_v2", device->index);
    result = mig_of(device, &mig);
    if (result != OK) return result;
    memset(attributes, 0, sizeof *attributes);
    attributes->slices = mig.slices;
    attributes->compute_slices = mig.compute_slices;
    attributes->multiprocessors = 16 * mig.compute_slices;
    attributes->copy_engines = mig.slices;
    attributes->mib = mig.mib;
    return OK;
}

#ifndef OLD_DRIVER
/* GPU instances that are made by calls, in this process. Two never overlap; the compute instance is the whole of it. */
enum { INSTANCES = 8, MORE = 7, IN_USE = 19, INSUFFICIENT_RESOURCES = 23 };
typedef struct { unsigned start, size; } Placement;
typedef struct {
    int kind, starts[INSTANCES], count;
    unsigned number, slices, mib, multiprocessors, size;
    char name[96];
} Profile;
typedef struct {
    unsigned version, id, p2p, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    unsigned long long mib;
    char name[96];
} ProfileInfo;
typedef struct {
    unsigned version, id, slices, instances, multiprocessors, copy, decoders, encoders, jpeg, ofa;
    char name[96];
} ComputeProfileInfo;
typedef struct { int there, computes, index; unsigned number, slices; Placement place; Device device; } Instance;
typedef struct { Device *device; unsigned id, number; Placement place; } InstanceInfo;
typedef struct { Device *device; Instance *instance; unsigned id, number; Placement place; } ComputeInfo;
static Instance instances[GPUS][INSTANCES];

/* The profile of that kind, or with that number if kind is negative. */
static int profile_of(int index, int kind, unsigned number, Profile *p) {
    char line[512], starts[128];
    int i, found = 0;
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    while (file && !found && fgets(line, sizeof line, file))
        if (sscanf(line, "profile %d %d %u %u %u %u %u %127s %95[^\n]", &i, &p->kind, &p->number, &p->slices, &p->mib,
                   &p->multiprocessors, &p->size, starts, p->name) == 9 &&
            i == index && (kind >= 0 ? p->kind == kind : p->number == number))
            found = 1;
    if (file) fclose(file);
    p->count = 0;
    for (char *at = found ? strtok(starts, ",") : NULL; at; at = strtok(NULL, ",")) p->starts[p->count++] = atoi(at);
    return found;
}

int nvmlDeviceGetGpuInstanceProfileInfoV(Device *device, unsigned kind, ProfileInfo *info) {
    Profile p;
    ENTER("nvmlDeviceGetGpuInstanceProfileInfoV", device->index);
    if (info->version != (sizeof *info | 2u << 24)) return INVALID_ARGUMENT;
    if (!m.gpu[device->index].mig || !profile_of(device->index, (int)kind, 0, &p)) return NOT_SUPPORTED;
    info->id = p.number, info->slices = p.slices, info->mib = p.mib, info->multiprocessors = p.multiprocessors;
    snprintf(info->name, sizeof info->name, "%s", p.name);
    return OK;
}

int nvmlDeviceGetGpuInstancePossiblePlacements_v2(Device *device, unsigned number, Placement *places, unsigned *count) {
    Profile p;
    ENTER("nvmlDeviceGetGpuInstancePossiblePlacements_v2", device->index);
    if (!profile_of(device->index, -1, number, &p)) return INVALID_ARGUMENT;
    if (places && *count < (unsigned)p.count) return MORE;
    *count = (unsigned)p.count;
    for (int i = 0; places && i < p.count; i++) places[i] = (Placement){(unsigned)p.starts[i], p.size};
    return OK;
}

int nvmlDeviceGetGpuInstances(Device *device, unsigned number, Instance **out, unsigned *count) {
    ENTER("nvmlDeviceGetGpuInstances", device->index);
    if (!m.gpu[device->index].mig) return NOT_SUPPORTED;
    *count = 0;
    for (Instance *it = instances[device->index]; it < instances[device->index] + INSTANCES; it++)
        if (it->there && it->number == number) out[(*count)++] = it;
    return OK;
}

int nvmlDeviceCreateGpuInstanceWithPlacement(Device *device, unsigned number, const Placement *place, Instance **out) {
    Profile p;
    Instance *room = NULL;
    int fits = 0;
    ENTER("nvmlDeviceCreateGpuInstanceWithPlacement", device->index);
    if (!profile_of(device->index, -1, number, &p)) return INVALID_ARGUMENT;
    for (int i = 0; i < p.count; i++) fits |= (unsigned)p.starts[i] == place->start && p.size == place->size;
    if (!fits) return INVALID_ARGUMENT;
    for (Instance *it = instances[device->index]; it < instances[device->index] + INSTANCES; it++) {
        if (!it->there) room = it;
        else if (place->start < it->place.start + it->place.size && it->place.start < place->start + place->size)
            return INSUFFICIENT_RESOURCES;
    }
    *room = (Instance){1, 0, device->index, number, p.slices, *place, {device->index, MIGS + 1 + (int)place->start}};
    *out = room;
    return OK;
}

int nvmlGpuInstanceGetInfo(Instance *it, InstanceInfo *info) {
    ENTER("nvmlGpuInstanceGetInfo", it->index);
    *info = (InstanceInfo){&devices[it->index], 1 + it->place.start, it->number, it->place};
    return it->there ? OK : NOT_FOUND;
}

int nvmlGpuInstanceDestroy(Instance *it) {
    ENTER("nvmlGpuInstanceDestroy", it->index);
    if (it->computes) return IN_USE;
    it->there = 0;
    return OK;
}

int nvmlGpuInstanceGetComputeInstanceProfileInfoV(Instance *it, unsigned kind, unsigned engine, ComputeProfileInfo *info) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    ENTER("nvmlGpuInstanceGetComputeInstanceProfileInfoV", it->index);
    if (info->version != (sizeof *info | 2u << 24) || engine) return INVALID_ARGUMENT;
    if (kind > 4 || slices[kind] > it->slices) return NOT_SUPPORTED;
    info->id = kind, info->slices = slices[kind];
    return OK;
}

int nvmlGpuInstanceCreateComputeInstance(Instance *it, unsigned number, Instance **out) {
    static const unsigned slices[] = {1, 2, 3, 4, 7};
    ENTER("nvmlGpuInstanceCreateComputeInstance", it->index);
    if (number > 4 || slices[number] != it->slices || it->computes) return INSUFFICIENT_RESOURCES;
    it->computes = 1 + (int)number;
    *out = it;
    return OK;
}

int nvmlGpuInstanceGetComputeInstances(Instance *it, unsigned number, Instance **out, unsigned *count) {
    ENTER("nvmlGpuInstanceGetComputeInstances", it->index);
    *count = it->computes == 1 + (int)number;
    if (*count) out[0] = it;
    return OK;
}

int nvmlComputeInstanceGetInfo_v2(Instance *it, ComputeInfo *info) {
    ENTER("nvmlComputeInstanceGetInfo_v2", it->index);
    *info = (ComputeInfo){&it->device, it, 0, (unsigned)it->computes - 1, {0, it->slices}};
    return OK;
}

int nvmlComputeInstanceDestroy(Instance *it) {
    char start[16], rest[16];
    ENTER("nvmlComputeInstanceDestroy", it->index);
    snprintf(start, sizeof start, "%u", it->place.start);
    if (rest_of_line("used", it->index, start, rest, sizeof rest)) return IN_USE;
    it->computes = 0;
    return OK;
}
#endif

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *values) {
    ENTER("nvmlDeviceGetFieldValues", device->index);
    int action = m.gpu[device->index].action;
    for (int i = 0; i < count; i++) {
        char key[32], rest[128], value[100];
        snprintf(key, sizeof key, "%u/%u", values[i].field, values[i].scope);
        values[i].result = NOT_SUPPORTED;
        if (rest_of_line("field", device->index, key, rest, sizeof rest) && sscanf(rest, "%u %99s", &values[i].type, value) == 2) {
            values[i].result = OK;
            values[i].value.ull = strtoull(value, NULL, 0);
            if (values[i].type == 0) values[i].value.d = strtod(value, NULL);
        }
        if (values[i].field != FIELD_RECOVERY_ACTION) continue;
        values[i].type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
        values[i].result = action == -1 ? NOT_SUPPORTED : OK;
        values[i].value.u = action == -2 ? ~0u : (unsigned)action; /* NVML_VALUE_NOT_AVAILABLE */
    }
    return OK;
}

int nvmlDeviceGetSramEccErrorStatus(Device *device, SramStatus *status) {
    unsigned long long value = 0;
    ENTER("nvmlDeviceGetSramEccErrorStatus", device->index);
    if (status->version != (sizeof *status | 1 << 24)) return 25; /* ARGUMENT_VERSION_MISMATCH */
    result = vital(device, "sram_threshold", &value);
    status->threshold_exceeded = (unsigned)value;
    vital(device, "sram_l2", &status->l2);
    return result;
}

/* The registration, for a call of this version; without a line "fabric" there are the vitals of version 2. */
static int registration(Device *device, unsigned version, FabricInfo1 *info) {
    char newest[2] = "0", rest[128], digits[33] = "";
    unsigned state = 0;
    int result;
    memset(info, 0, sizeof *info);
    for (; newest[0] <= '3'; newest[0]++) {
        if (!rest_of_line("fabric", device->index, newest, rest, sizeof rest)) continue;
        if (newest[0] == '0') return NOT_SUPPORTED;
        if (version > (unsigned)(newest[0] - '0')) return 25; /* ARGUMENT_VERSION_MISMATCH */
        if (sscanf(rest, "%u %d %u %32s", &state, &info->status, &info->clique, digits) != 4) return 999;
        info->state = (unsigned char)state;
        for (int i = 0; i < 16; i++) sscanf(digits + 2 * i, "%2hhx", &info->cluster[i]);
        return OK;
    }
    if (version != 2) return version == 3 ? 25 : NOT_SUPPORTED;
    result = small_vital(device, "fabric_state", &state);
    info->state = (unsigned char)state;
    return result;
}

int nvmlDeviceGetGpuFabricInfo(Device *device, FabricInfo1 *info) {
    ENTER("nvmlDeviceGetGpuFabricInfo", device->index);
    return registration(device, 1, info);
}

int nvmlDeviceGetGpuFabricInfoV(Device *device, FabricInfo2 *info) {
    FabricInfo1 fabric;
    unsigned version = info->version >> 24;
    size_t size = info->version & 0xffffff;
    ENTER("nvmlDeviceGetGpuFabricInfoV", device->index);
    if (!(version == 2 && size == sizeof *info) && !(version == 3 && size == sizeof(FabricInfo3))) return 25;
    result = registration(device, version, &fabric);
    if (result != OK) return result;
    memcpy(info->cluster, fabric.cluster, sizeof info->cluster);
    info->status = fabric.status;
    info->clique = fabric.clique;
    info->state = fabric.state;
    info->health = 0;
    small_vital(device, "fabric_health", &info->health);
    if (version == 3) ((FabricInfo3 *)info)->summary = 1;
    return OK;
}

static int processes_of(Device *device, const char *kind, unsigned *count, Process *processes) {
    char line[512], word[16];
    unsigned room = *count, found = 0;
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    while (file && fgets(line, sizeof line, file)) {
        Process one = {.gpu_instance = ~0u, .compute_instance = ~0u};
        int index;
        if (sscanf(line, "%15s %d %u %llu", word, &index, &one.pid, &one.bytes) != 4) continue;
        if (strcmp(word, kind) || index != device->index) continue;
        if (found < room && processes) processes[found] = one;
        found++;
    }
    if (file) fclose(file);
    *count = found;
    return found > room ? 7 : OK; /* INSUFFICIENT_SIZE */
}

#define PROCESSES(call, kind)                                           \
    int call(Device *device, unsigned *count, Process *processes) {     \
        ENTER(#call, device->index);                                    \
        return processes_of(device, kind, count, processes);            \
    }

PROCESSES(nvmlDeviceGetComputeRunningProcesses_v3, "process")
PROCESSES(nvmlDeviceGetGraphicsRunningProcesses_v3, "graphics")
PROCESSES(nvmlDeviceGetMPSComputeRunningProcesses_v3, "mps")

typedef struct { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; } Sample;
enum { SAMPLES = 100 };

int nvmlDeviceGetProcessUtilization(Device *device, Sample *samples, unsigned *count, unsigned long long since) {
    ENTER("nvmlDeviceGetProcessUtilization", device->index);
    char line[512];
    unsigned room = *count, found = 0;
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    *count = SAMPLES;
    if (samples && room >= SAMPLES)
        for (unsigned i = 0; i < SAMPLES; i++) samples[i] = (Sample){4242 + i, ~0ull - i, 2147483632u, 7, 7, 7};
    while (file && fgets(line, sizeof line, file)) {
        Sample one = {0};
        int index;
        if (sscanf(line, "sample %d %u %llu %u", &index, &one.pid, &one.time, &one.sm) != 4) continue;
        if (index != device->index || one.time <= since) continue;
        if (samples && room >= SAMPLES && found < SAMPLES) samples[found] = one;
        found++;
    }
    if (file) fclose(file);
    if (!found) return 6; /* NOT_FOUND */
    return samples && room >= SAMPLES ? OK : 7; /* INSUFFICIENT_SIZE */
}

typedef struct { const char *name_space; unsigned long long soft, hard; } SetLimits;
typedef struct { const char *name_space; unsigned long long soft, hard, used; } GetLimits;
enum { CGROUP_MAX = 1024 };
static const unsigned long long UNSET = ~0ull - 1;

static int has_word(const char *word) {
    char line[512];
    int found = 0;
    FILE *file = fopen(getenv("NVML_STANDIN"), "r");
    while (file && fgets(line, sizeof line, file)) found |= !strncmp(line, word, strlen(word)) && line[strlen(word)] == '\n';
    if (file) fclose(file);
    return found;
}

/* A value of one GPU in a file of a cgroup; 0 if the file is not there. UNSET: it has no line of this GPU. */
static int dmem(const char *folder, const char *name, const char *bus, unsigned long long *value) {
    char path[CGROUP_MAX + 32], line[256], key[64], text[64];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    *value = strcmp(name, "dmem.max") ? 0 : UNSET;
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "%63s %63s", key, text) == 2 && !strcmp(key, bus))
            *value = strcmp(text, "max") ? strtoull(text, NULL, 10) : ~0ull;
    fclose(file);
    return 1;
}

static void set_dmem(const char *folder, const char *name, const char *bus, unsigned long long value) {
    char path[CGROUP_MAX + 32], line[256], kept[4096] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, bus, strlen(bus))) strncat(kept, line, sizeof kept - strlen(kept) - 1);
    if (file) fclose(file);
    file = fopen(path, "w");
    if (!file) return;
    if (value == ~0ull) fprintf(file, "%s%s max\n", kept, bus);
    else fprintf(file, "%s%s %llu\n", kept, bus, value);
    fclose(file);
}

/* Memory is charged only to a cgroup that has a limit: what was allocated before it is not. */
static unsigned long long charged_misc(int index, const char *name_space) {
    char path[512], line[CGROUP_MAX + 128], name[CGROUP_MAX];
    int i, limited = 0;
    unsigned long long bytes, used = 0;
    snprintf(path, sizeof path, "%s.limits", getenv("NVML_STANDIN"));
    FILE *file = fopen(path, "r");
    while (file && fgets(line, sizeof line, file))
        limited |= sscanf(line, "%d %1023s", &i, name) == 2 && i == index && !strcmp(name, name_space);
    if (file) fclose(file);
    file = limited ? fopen(getenv("NVML_STANDIN"), "r") : NULL;
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "charged %d %llu", &i, &bytes) == 2 && i == index) used = bytes;
    if (file) fclose(file);
    return used;
}

static int set_misc(int index, const char *name_space, unsigned long long soft, unsigned long long hard) {
    char path[512];
    if (charged_misc(index, name_space) > hard) return INVALID_ARGUMENT;
    snprintf(path, sizeof path, "%s.limits", getenv("NVML_STANDIN"));
    FILE *file = fopen(path, "a");
    if (!file) return 999;
    fprintf(file, "%d %s %llu %llu\n", index, name_space, soft, hard);
    fclose(file);
    return OK;
}

/* The last line about this cgroup or its nearest ancestor; 0 if there is none. */
static int get_misc(int index, char *name_space, unsigned long long *soft, unsigned long long *hard) {
    char path[512], line[CGROUP_MAX + 128], name[CGROUP_MAX];
    int i, found = 0;
    unsigned long long s, h;
    snprintf(path, sizeof path, "%s.limits", getenv("NVML_STANDIN"));
    while (!found && *name_space) {
        FILE *file = fopen(path, "r");
        while (file && fgets(line, sizeof line, file))
            if (sscanf(line, "%d %1023s %llu %llu", &i, name, &s, &h) == 4 && i == index && !strcmp(name, name_space)) {
                *soft = s;
                *hard = h;
                found = 1;
            }
        if (file) fclose(file);
        char *slash = strrchr(name_space, '/');
        if (!slash) break;
        *slash = 0;
    }
    return found;
}

int nvmlDeviceSetMemoryLimits_v1(Device *device, SetLimits *limits) {
    char path[512], ancestor[CGROUP_MAX];
    struct stat status;
    unsigned long long before, sum, used;
    ENTER("nvmlDeviceSetMemoryLimits_v1", device->index);
    Gpu *gpu = &m.gpu[device->index];
    if (gpu->mig) return NOT_SUPPORTED;
    if (limits->soft > limits->hard || strlen(limits->name_space) >= CGROUP_MAX) return INVALID_ARGUMENT;
    if (limits->soft > gpu->bytes || (limits->hard > gpu->bytes && limits->hard != ~0ull)) return INVALID_ARGUMENT;
    if (stat(limits->name_space, &status) || !S_ISDIR(status.st_mode)) return OPERATING_SYSTEM;
    snprintf(path, sizeof path, "%s.calls", getenv("NVML_STANDIN"));
    FILE *calls = fopen(path, "a");
    if (calls) {
        fprintf(calls, "%s %s %llu %llu\n", gpu->uuid, limits->name_space, limits->soft, limits->hard);
        fclose(calls);
    }
    if (has_word("forgetful")) return OK;
    if (has_word("misc")) return set_misc(device->index, limits->name_space, limits->soft, limits->hard);
    if (!dmem(limits->name_space, "dmem.min", gpu->bus_id, &before)) return NOT_FOUND;
    if (!dmem(limits->name_space, "dmem.current", gpu->bus_id, &used) || limits->hard >= used)
        set_dmem(limits->name_space, "dmem.max", gpu->bus_id, limits->hard);
    set_dmem(limits->name_space, "dmem.min", gpu->bus_id, limits->soft);
    snprintf(ancestor, sizeof ancestor, "%s", limits->name_space);
    for (char *slash; (slash = strrchr(ancestor, '/')) != NULL;) {
        *slash = 0;
        if (!dmem(ancestor, "dmem.min", gpu->bus_id, &sum)) break;
        set_dmem(ancestor, "dmem.min", gpu->bus_id, sum + limits->soft - before);
    }
    return OK;
}

int nvmlDeviceGetMemoryLimits_v1(Device *device, GetLimits *limits) {
    char folder[CGROUP_MAX];
    struct stat status;
    ENTER("nvmlDeviceGetMemoryLimits_v1", device->index);
    Gpu *gpu = &m.gpu[device->index];
    if (gpu->mig) return NOT_SUPPORTED;
    if (strlen(limits->name_space) >= CGROUP_MAX) return INVALID_ARGUMENT;
    if (stat(limits->name_space, &status) || !S_ISDIR(status.st_mode)) return OPERATING_SYSTEM;
    limits->used = 0;
    snprintf(folder, sizeof folder, "%s", limits->name_space);
    if (has_word("misc")) {
        if (!get_misc(device->index, folder, &limits->soft, &limits->hard)) return NOT_SUPPORTED;
        limits->used = charged_misc(device->index, limits->name_space);
        return OK;
    }
    while (!dmem(folder, "dmem.max", gpu->bus_id, &limits->hard) || limits->hard == UNSET) {
        char *slash = strrchr(folder, '/');
        if (!slash || slash == folder) return NOT_FOUND;
        *slash = 0;
    }
    dmem(folder, "dmem.min", gpu->bus_id, &limits->soft);
    dmem(limits->name_space, "dmem.current", gpu->bus_id, &limits->used);
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
        if (e->sequence <= set->delivered) continue;
        set->delivered = e->sequence;
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
            if (set->mask[i] && m.gpu[i].lost && !has_word("quiet")) result = GPU_IS_LOST;
        if (result == OK && now_ms() >= until) result = TIMEOUT;
        if (result != OK) break;
        nap();
    }
    waiting--;
    return result;
}
#endif
