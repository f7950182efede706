// SPDX-License-Identifier: Apache-2.0
/* pages_format: see format/pages_format.h. */
#include "format/pages_format.h"

bool pages_geometry(uint64_t bytes, uint32_t files, struct pages_layout *out)
{
	uint64_t table_at = pages_round_up((uint64_t)files * PAGES_FILE_BYTES);
	uint64_t frames, frames_at;

	if (files == 0 || files > PAGES_FILES_MAX || bytes <= table_at)
		return false;
	frames = (bytes - table_at) / (PAGES_BYTES + sizeof(struct page_frame));
	if (frames > PAGES_FRAMES_MAX)
		frames = PAGES_FRAMES_MAX;
	for (; frames >= 8; frames--) {
		frames_at = table_at + pages_round_up(frames * sizeof(struct page_frame));
		if (frames_at + frames * PAGES_BYTES > bytes)
			continue;
		*out = (struct pages_layout){.files = files,
		                             .frames = (uint32_t)frames,
		                             .table_at = table_at,
		                             .frames_at = frames_at,
		                             .bytes = frames_at + frames * PAGES_BYTES};
		return true;
	}
	return false;
}
