// Package dlpack holds the declarations of DLPack's structs that kvcache.h includes.
package dlpack
