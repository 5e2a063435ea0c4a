# cmake -DROOT=<records> -DFILES=<a,b> -DOUTPUT=<file.cpp> -P EmbedRecords.cmake
# Writes a C++ source that defines runtime::builtin_records() with the text of each file, of which there may be none. A
# string literal may be at most 65,536 characters long, and 400 records come to that.
set(body "")
string(REPLACE "," ";" FILES "${FILES}")
foreach(path IN LISTS FILES)
  file(READ "${ROOT}/${path}" text)
  string(APPEND body "      R\"record(${text})record\",\n")
endforeach()
file(WRITE "${OUTPUT}" "// Made by cmake/EmbedRecords.cmake from runtime/tuning/records/.
#include \"runtime/tuning/tuning_records.h\"

namespace flashjit::runtime {

std::vector<std::string_view> builtin_records() {
  return {
${body}  };
}

}  // namespace flashjit::runtime
")
