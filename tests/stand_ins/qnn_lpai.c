/* Stands in for libQnnLpai.so, or libQnnGpu.so with -DGPU: QNN's HTP library under another backend's id.

   What HTP would not know is left out on the way: configurations of backend, context and graph, and
   finalizing a graph that comes out of a binary, which LPAI asks for. The device, which ExecuTorch creates
   for HTP alone, is made with the backend. With -DREFUSES the backend is refused in the words of the GPU
   library for x86_64. The order of the functions is that of QNN's C API, 2.27 to 2.38. */

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#ifdef GPU
enum { ID = 4, MAJOR = 3 };
#else
enum { ID = 12, MAJOR = 2 };
#endif

enum {
    BACKEND_CREATE = 1,
    API_VERSION = 3,
    CONTEXT_CREATE = 9,
    CONTEXT_FROM_BINARY = 13,
    GRAPH_CREATE = 15,
    GRAPH_SET_CONFIG = 17,
    GRAPH_FINALIZE = 19,
    GRAPH_RETRIEVE = 20,
    DEVICE_CREATE = 40,
    FUNCTIONS = 68,
    GRAPHS = 64,
    SOC_MODEL = 57, /* SM8650 */
    REFUSED = 4000,
};

typedef uint64_t function(void *, ...);
typedef struct {
    uint32_t core[3], backend[3];
} versions;
typedef struct {
    uint32_t id;
    const char *name;
    versions api;
    function *functions[FUNCTIONS];
} interface;
typedef struct {
    uint32_t option;
    uint64_t value[8];
} config;

static interface htp, own;
static void *device, *retrieved[GRAPHS];
static int graphs;

static uint64_t create_backend(void *log, void *configs, void *backend) {
    (void)configs;
#ifdef REFUSES
    (void)log, (void)backend;
    fprintf(stderr, "[ERROR] [Qnn ExecuTorch]: GPU ERROR: TuningMode must be enabled\n");
    return REFUSED;
#else
    uint32_t soc[16] = {0, SOC_MODEL};
    config custom = {0, {(uint64_t)(uintptr_t)soc}};
    config *list[] = {&custom, NULL};
    uint64_t error = htp.functions[BACKEND_CREATE](log, NULL, backend);
    return error ? error : htp.functions[DEVICE_CREATE](log, list, &device);
#endif
}

static uint64_t tell_version(versions *told) {
    uint64_t error = htp.functions[API_VERSION](told);
    const uint32_t newest[3] = {MAJOR, 99, 0};
    memcpy(told->backend, newest, sizeof newest);
    return error;
}

static uint64_t create_context(void *backend, void *none, void *configs, void *context) {
    (void)none, (void)configs;
    return htp.functions[CONTEXT_CREATE](backend, device, NULL, context);
}

static uint64_t read_context(
    void *backend, void *none, void *configs, void *data, uint64_t size, void *context, void *profile
) {
    (void)none, (void)configs;
    return htp.functions[CONTEXT_FROM_BINARY](backend, device, NULL, data, size, context, profile);
}

static uint64_t create_graph(void *context, void *name, void *configs, void *graph) {
    (void)configs;
    return htp.functions[GRAPH_CREATE](context, name, NULL, graph);
}

static uint64_t retrieve_graph(void *context, void *name, void **graph) {
    uint64_t error = htp.functions[GRAPH_RETRIEVE](context, name, graph);
    if (!error) retrieved[graphs++ % GRAPHS] = *graph;
    return error;
}

static uint64_t ignore_config(void *graph, void *configs) {
    (void)graph, (void)configs;
    return 0;
}

static uint64_t finalize_graph(void *graph, void *profile, void *signal) {
    for (int i = 0; i < GRAPHS; i++)
        if (retrieved[i] == graph) return 0;
    return htp.functions[GRAPH_FINALIZE](graph, profile, signal);
}

uint64_t QnnInterface_getProviders(const interface ***list, uint32_t *count) {
    static const interface *providers[] = {&own};
    void *library = dlopen("libQnnHtp.so", RTLD_NOW | RTLD_LOCAL);
    const interface **theirs;
    uint32_t many;
    if (!library) return REFUSED;
    ((function *)dlsym(library, "QnnInterface_getProviders"))(&theirs, &many);
    htp = own = *theirs[0];
    own.id = ID;
    own.functions[BACKEND_CREATE] = (function *)create_backend;
    own.functions[API_VERSION] = (function *)tell_version;
    own.functions[CONTEXT_CREATE] = (function *)create_context;
    own.functions[CONTEXT_FROM_BINARY] = (function *)read_context;
    own.functions[GRAPH_CREATE] = (function *)create_graph;
    own.functions[GRAPH_RETRIEVE] = (function *)retrieve_graph;
    own.functions[GRAPH_SET_CONFIG] = (function *)ignore_config;
    own.functions[GRAPH_FINALIZE] = (function *)finalize_graph;
    *list = providers;
    *count = 1;
    return 0;
}
