/* The part of Triton's C interface that backends here call, and their entry: each request gets an `answer`.
 *
 * The server itself has the functions.
 */

#include <stddef.h>
#include <stdint.h>

typedef void error, request, response, input, output, instance;

error *TRITONBACKEND_RequestInput(request *of, const char *name, input **found);
error *TRITONBACKEND_InputProperties(input *of, const char **name, int *datatype,
                                     const int64_t **shape, uint32_t *rank, uint64_t *size,
                                     uint32_t *buffers);
error *TRITONBACKEND_InputBuffer(input *of, uint32_t index, const void **buffer, uint64_t *size,
                                 int *memory_type, int64_t *memory_number);
error *TRITONBACKEND_ResponseNew(response **made, request *to);
error *TRITONBACKEND_ResponseOutput(response *of, output **made, const char *name, int datatype,
                                    const int64_t *shape, uint32_t rank);
error *TRITONBACKEND_OutputBuffer(output *of, void **buffer, uint64_t size, int *memory_type,
                                  int64_t *memory_number);
error *TRITONBACKEND_ResponseSend(response *sent, uint32_t flags, error *failure);
error *TRITONBACKEND_RequestRelease(request *done, uint32_t flags);

enum { CPU = 0, FINAL = 1, ALL = 1 };

static error *answer(request *asked);

error *TRITONBACKEND_ModelInstanceExecute(instance *by, request **asked, const uint32_t count) {
  (void)by;
  for (uint32_t index = 0; index < count; index++) {
    error *failure = answer(asked[index]);
    if (failure != NULL) return failure;
    failure = TRITONBACKEND_RequestRelease(asked[index], ALL);
    if (failure != NULL) return failure;
  }
  return NULL;
}
