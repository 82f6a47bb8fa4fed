/* A management library that answers for four GPUs: see the test that compiles it, in command/src/topo/machine.rs. GPUs 0 and 1 have 18
   links to a switch; GPUs 2 and 3 have 4 to each other, the last of them down. */

#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3 };
enum { TO_GPU = 0, TO_SWITCH = 2 };
enum { VERSION_3_0 = 4, VERSION_4_0 = 6 };

struct pci_info {
    char legacy_id[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char id[32];
};

static const unsigned buses[] = {0x0a, 0x0b, 0x1c, 0x1d};
static int initialised;

int nvmlInit_v2(void) { initialised = 1; return SUCCESS; }
int nvmlShutdown(void) { initialised = 0; return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    *count = 4;
    return initialised ? SUCCESS : UNINITIALIZED;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    /* No handle is a null pointer. */
    *device = (void *)(uintptr_t)(index + 1);
    return index < 4 ? SUCCESS : INVALID_ARGUMENT;
}

static unsigned number(void *device) { return (unsigned)(uintptr_t)device - 1; }

static void fill(struct pci_info *info, unsigned bus) {
    memset(info, 0, sizeof *info);
    info->bus = bus;
    snprintf(info->id, sizeof info->id, "00000000:%02X:00.0", bus);
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci_info *info) {
    fill(info, buses[number(device)]);
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, unsigned *up) {
    unsigned links = number(device) < 2 ? 18 : 4;
    *up = number(device) < 2 || link < 3;
    return link < links ? SUCCESS : INVALID_ARGUMENT;
}

int nvmlDeviceGetNvLinkVersion(void *device, unsigned link, unsigned *version) {
    (void)link;
    *version = number(device) < 2 ? VERSION_4_0 : VERSION_3_0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, unsigned *type) {
    (void)link;
    *type = number(device) < 2 ? TO_SWITCH : TO_GPU;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci_info *info) {
    (void)link;
    if (number(device) < 2)
        return NOT_SUPPORTED;
    fill(info, buses[number(device) == 2 ? 3 : 2]);
    return SUCCESS;
}
