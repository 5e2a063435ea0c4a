# cmake -DROOT=<templates> -DFILES=<a,b> -DOUTPUT=<file.cpp> -P EmbedTemplates.cmake
# Writes a C++ source that defines generator::embedded_templates() with the text of each file, all in one deflated
# stream: as text they would be a fifth of the library. Lines that are comments are left empty: no kernel has them
# (generator/comments.h).
set(texts "")
set(table "")
string(REPLACE "," ";" FILES "${FILES}")
foreach(path IN LISTS FILES)
  file(READ "${ROOT}/${path}" text)
  string(REGEX REPLACE "(^|\n) *//[^\n]*" "\\1" text "${text}")
  string(LENGTH "${text}" bytes)
  string(APPEND table "    {\"${path}\", ${bytes}},\n")
  string(APPEND texts "${text}")
endforeach()

# A gzip file of one member: what follows its header, of 10 bytes, is deflated. The header has the time of day, with which
# no two builds would be equal.
file(WRITE "${OUTPUT}.txt" "${texts}")
file(ARCHIVE_CREATE OUTPUT "${OUTPUT}.gz" PATHS "${OUTPUT}.txt" FORMAT raw COMPRESSION GZip COMPRESSION_LEVEL 9)
file(READ "${OUTPUT}.gz" deflated OFFSET 10 HEX)
file(REMOVE "${OUTPUT}.txt" "${OUTPUT}.gz")
string(REGEX REPLACE "(..)" "0x\\1," deflated "${deflated}")

file(WRITE "${OUTPUT}" "// Made by cmake/EmbedTemplates.cmake from templates/.
#include \"generator/inflate.h\"
#include \"generator/templates.h\"

namespace flashjit::generator {
namespace {

constexpr DeflatedFile kFiles[] = {
${table}};
constexpr unsigned char kDeflated[] = {${deflated}};

}  // namespace

const Templates& embedded_templates() {
  static const Templates templates(inflate(kFiles, kDeflated));
  return templates;
}

}  // namespace flashjit::generator
")
