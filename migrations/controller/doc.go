// Package controller embeds the migrations of the controller's database.
package controller
